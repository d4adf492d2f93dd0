// SPDX-License-Identifier: Apache-2.0
#include "tests/support/temp_dir.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

void Require(bool done, absl::string_view what) {
  if (done) return;
  std::cerr << "test set-up failed: " << what << "\n";
  std::abort();
}

}  // namespace

TempDir::TempDir() {
  std::string name = (std::filesystem::temp_directory_path() / "headwise-test-XXXXXX").string();
  Require(::mkdtemp(name.data()) != nullptr, name);
  path_ = name;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string TempDir::Path(absl::string_view name) const { return absl::StrCat(path_, "/", name); }

std::string TempDir::Write(absl::string_view name, absl::string_view bytes) const {
  const std::string path = Path(name);
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  Require(file.good(), path);
  return path;
}

void TempDir::MakeFolder(absl::string_view name) const {
  std::filesystem::create_directories(Path(name));
}

void TempDir::Link(absl::string_view target, absl::string_view name) const {
  const std::filesystem::path path = Path(name);
  std::filesystem::create_directories(path.parent_path());
  std::filesystem::create_symlink(std::string(target), path);
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  Require(file.good(), path);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

}  // namespace headwise
