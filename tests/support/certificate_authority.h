// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_SUPPORT_CERTIFICATE_AUTHORITY_H_
#define HEADWISE_TESTS_SUPPORT_CERTIFICATE_AUTHORITY_H_

#include <string>

#include "tests/support/temp_dir.h"

namespace headwise {

// Texts in PEM.
struct IssuedCertificate {
  std::string key;
  std::string chain;
};

// Signs certificates with a key of its own, by the openssl program. Ends the test program if that
// fails.
class CertificateAuthority {
 public:
  CertificateAuthority();

  // For localhost and 127.0.0.1, as server or client, with the serial number `serial`.
  IssuedCertificate Issue(int serial) const;
  // Its own certificate, and the path of a file that holds it.
  std::string certificate() const;
  std::string path() const { return dir_.Path("ca.pem"); }

 private:
  void OpenSsl(const std::string& arguments) const;

  TempDir dir_;
};

}  // namespace headwise

#endif  // HEADWISE_TESTS_SUPPORT_CERTIFICATE_AUTHORITY_H_
