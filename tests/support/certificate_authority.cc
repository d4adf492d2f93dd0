// SPDX-License-Identifier: Apache-2.0
#include "tests/support/certificate_authority.h"

#include <cstdlib>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"

namespace headwise {

void CertificateAuthority::OpenSsl(const std::string& arguments) const {
  const std::string command =
      absl::StrCat("cd ", dir_.path(), " && openssl ", arguments, " >>log 2>&1");
  CHECK_EQ(std::system(command.c_str()), 0) << command << "\n" << ReadBytes(dir_.Path("log"));
}

CertificateAuthority::CertificateAuthority() {
  OpenSsl(
      "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.pem "
      "-days 2 -subj /CN=test-authority");
}

std::string CertificateAuthority::certificate() const { return ReadBytes(path()); }

IssuedCertificate CertificateAuthority::Issue(int serial) const {
  dir_.Write("extensions", "subjectAltName=DNS:localhost,IP:127.0.0.1\n");
  OpenSsl(
      "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout leaf.key -out leaf.csr "
      "-subj /CN=localhost");
  OpenSsl(absl::StrCat("x509 -req -in leaf.csr -CA ca.pem -CAkey ca.key -set_serial ", serial,
                       " -days 1 -extfile extensions -out leaf.pem"));
  return {ReadBytes(dir_.Path("leaf.key")), ReadBytes(dir_.Path("leaf.pem"))};
}

}  // namespace headwise
