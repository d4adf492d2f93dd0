// SPDX-License-Identifier: Apache-2.0
// The server's key and certificates, and how gRPC gets them.
#ifndef HEADWISE_SERVER_CERTIFICATES_H_
#define HEADWISE_SERVER_CERTIFICATES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/format/file.h"

namespace headwise {

// PEM texts.
struct Certificates {
  std::string key;        // private, not encrypted
  std::string chain;      // the server's certificate first
  std::string client_ca;  // who signs callers' certificates; empty: none are asked for
};

// INVALID_ARGUMENT, naming the flag, if the key doesn't belong to the chain's first certificate or
// a text isn't what it should be. Never repeats what a text holds.
absl::Status CheckCertificates(const Certificates& certificates);

// A folder from which gRPC's file watcher reads one consistent set of certificates: its paths go
// through one symbolic link, which each Publish moves at once. The texts are in memory only, so
// nothing secret is left on a disk whatever ends the process. Publish from one thread at a time.
class CertificateFolder {
 public:
  // In /dev/shm, else /tmp. UNAVAILABLE if neither can be written.
  static absl::StatusOr<std::unique_ptr<CertificateFolder>> Create();
  ~CertificateFolder();
  CertificateFolder(const CertificateFolder&) = delete;
  CertificateFolder& operator=(const CertificateFolder&) = delete;

  absl::Status Publish(const Certificates& certificates);

  std::string key_path() const;
  std::string chain_path() const;
  std::string client_ca_path() const;

 private:
  // The files of one Publish.
  struct Generation {
    std::string folder;
    std::vector<UniqueFd> files;
  };

  explicit CertificateFolder(std::string path) : path_(std::move(path)) {}
  absl::Status Link(const std::string& text, const std::string& name, Generation* generation) const;
  static void Remove(const Generation& generation);

  const std::string path_;
  int64_t published_ = 0;
  std::vector<Generation> generations_;  // the one in use, and the one before: it may be being read
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_CERTIFICATES_H_
