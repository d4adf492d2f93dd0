// SPDX-License-Identifier: Apache-2.0
#include "core/format/tensor_file.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/format/file.h"
#include "core/format/npy.h"
#include "core/format/safetensors.h"

namespace headwise {
namespace {

constexpr absl::string_view kSuffix = ".safetensors";

// The tensor meant where none is named: the only one, else "x".
absl::StatusOr<std::string> DefaultName(const SafetensorsFile& file, absl::string_view path) {
  const std::vector<SafetensorsEntry>& entries = file.header().entries;
  if (entries.size() == 1) return entries.front().name;
  if (file.Find("x") != nullptr) return "x";
  return absl::NotFoundError(absl::StrCat(
      Printable(path), ": must name one of its tensors as FILE:NAME; it holds ", entries.size(),
      entries.empty() ? "" : absl::StrCat(", \"", Printable(entries.front().name), "\" first")));
}

}  // namespace

TensorFileName ParseTensorFileName(absl::string_view text) {
  const size_t split = text.rfind(absl::StrCat(kSuffix, ":"));
  if (split == absl::string_view::npos) return {std::string(text), ""};
  const size_t colon = split + kSuffix.size();
  return {std::string(text.substr(0, colon)), std::string(text.substr(colon + 1))};
}

absl::StatusOr<OwnedTensor> ReadTensorFile(absl::string_view text) {
  const TensorFileName name = ParseTensorFileName(text);
  if (absl::EndsWith(name.file, ".npy")) return ReadNpy(name.file);
  if (!absl::EndsWith(name.file, kSuffix)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor file: must end with .npy or .safetensors; was ", Printable(name.file)));
  }
  const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(name.file);
  if (!file.ok()) return file.status();
  if (!name.name.empty()) return (*file)->Read(name.name);
  const absl::StatusOr<std::string> default_name = DefaultName(**file, name.file);
  if (!default_name.ok()) return default_name.status();
  return (*file)->Read(*default_name);
}

}  // namespace headwise
