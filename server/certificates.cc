// SPDX-License-Identifier: Apache-2.0
#include "server/certificates.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

constexpr char kKey[] = "key.pem", kChain[] = "chain.pem", kClientCa[] = "client-ca.pem";
constexpr char kCurrent[] = "current";
constexpr size_t kKeptGenerations = 2;

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* object) const { Free(object); }
};
struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;

Bio Open(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// An encrypted key has nobody to ask for its password.
int NoPassword(char*, int, int, void*) { return 0; }

Certificate ReadCertificate(BIO* bio) {
  return Certificate(PEM_read_bio_X509(bio, nullptr, NoPassword, nullptr));
}

absl::Status Refused(const char* flag, const char* rule, const char* was) {
  ERR_clear_error();  // it may quote what it read
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", rule, "; was ", was));
}

absl::Status SystemError(const char* what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("tls: the folder for gRPC must be writable; was ",
                                             path, ": ", what, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status CheckCertificates(const Certificates& certificates) {
  const Bio chain_bio = Open(certificates.chain);
  const Certificate chain = ReadCertificate(chain_bio.get());
  if (chain == nullptr) {
    return Refused("tls-cert", "must be certificates in PEM", "something else");
  }
  // Half of a chain would be handed out as the whole.
  while (ReadCertificate(chain_bio.get()) != nullptr) {
  }
  if (ERR_GET_REASON(ERR_peek_last_error()) != PEM_R_NO_START_LINE) {
    return Refused("tls-cert", "must be whole certificates in PEM", "cut or damaged");
  }
  const Bio key_bio = Open(certificates.key);
  const Key key(PEM_read_bio_PrivateKey(key_bio.get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) {
    return Refused("tls-key", "must be a private key in PEM, not encrypted", "something else");
  }
  if (X509_check_private_key(chain.get(), key.get()) != 1) {
    return Refused("tls-key", "must belong to the first certificate of --tls-cert",
                   "another certificate's");
  }
  ERR_clear_error();
  if (certificates.client_ca.empty()) return absl::OkStatus();
  const Bio ca_bio = Open(certificates.client_ca);
  if (ReadCertificate(ca_bio.get()) == nullptr) {
    return Refused("tls-client-ca", "must be certificates in PEM", "something else");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CertificateFolder>> CertificateFolder::Create() {
  absl::Status refused;
  for (const char* parent : {"/dev/shm", "/tmp"}) {
    std::string path = absl::StrCat(parent, "/headwise-tls-XXXXXX");
    if (mkdtemp(path.data()) != nullptr) {
      return std::unique_ptr<CertificateFolder>(new CertificateFolder(std::move(path)));
    }
    refused = SystemError("mkdtemp", path);
  }
  return refused;
}

CertificateFolder::~CertificateFolder() {
  unlink(absl::StrCat(path_, "/", kCurrent).c_str());
  for (const Generation& generation : generations_) Remove(generation);
  rmdir(path_.c_str());
}

void CertificateFolder::Remove(const Generation& generation) {
  for (const char* name : {kKey, kChain, kClientCa}) {
    unlink(absl::StrCat(generation.folder, "/", name).c_str());
  }
  rmdir(generation.folder.c_str());
}

std::string CertificateFolder::key_path() const {
  return absl::StrCat(path_, "/", kCurrent, "/", kKey);
}
std::string CertificateFolder::chain_path() const {
  return absl::StrCat(path_, "/", kCurrent, "/", kChain);
}
std::string CertificateFolder::client_ca_path() const {
  return absl::StrCat(path_, "/", kCurrent, "/", kClientCa);
}

absl::Status CertificateFolder::Link(const std::string& text, const std::string& name,
                                     Generation* generation) const {
  UniqueFd file(memfd_create(name.c_str(), MFD_CLOEXEC));
  const std::string path = absl::StrCat(generation->folder, "/", name);
  if (!file.ok() ||
      write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
    return SystemError("memfd", path);
  }
  // gRPC tells by the whole seconds of these whether what it has read belongs together.
  const timespec time{std::time(nullptr) + published_, 0};
  const std::array<timespec, 2> times = {time, time};
  const std::string target = absl::StrCat("/proc/self/fd/", file.get());
  if (futimens(file.get(), times.data()) != 0 || symlink(target.c_str(), path.c_str()) != 0) {
    return SystemError("symlink", path);
  }
  generation->files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status CertificateFolder::Publish(const Certificates& certificates) {
  ++published_;
  Generation generation{absl::StrCat(path_, "/", published_), {}};
  if (mkdir(generation.folder.c_str(), 0700) != 0) return SystemError("mkdir", generation.folder);
  absl::Status status = Link(certificates.key, kKey, &generation);
  status.Update(Link(certificates.chain, kChain, &generation));
  status.Update(Link(certificates.client_ca, kClientCa, &generation));
  const std::string next = absl::StrCat(path_, "/next"),
                    current = absl::StrCat(path_, "/", kCurrent);
  const std::string target = absl::StrCat(published_);
  if (status.ok() &&
      (symlink(target.c_str(), next.c_str()) != 0 || rename(next.c_str(), current.c_str()) != 0)) {
    status = SystemError("rename", current);
  }
  if (!status.ok()) {
    Remove(generation);
    return status;
  }
  generations_.push_back(std::move(generation));
  if (generations_.size() > kKeptGenerations) {
    Remove(generations_.front());
    generations_.erase(generations_.begin());
  }
  return absl::OkStatus();
}

}  // namespace headwise
