// SPDX-License-Identifier: Apache-2.0
#include "client/upload.h"

#include <google/protobuf/message.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>
#include <utility>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/status.h"
#include "core/format/file.h"
#include "core/format/strict_json.h"

namespace headwise::client {
namespace {

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr uint64_t kMaxIndexBytes = 100 << 20;

v1::StoredTensor Describe(const SafetensorsEntry& entry) {
  v1::StoredTensor tensor;
  tensor.set_name(entry.name);
  tensor.set_dtype(entry.dtype);
  for (const int64_t axis : entry.shape) tensor.add_shape(static_cast<uint32_t>(axis));
  return tensor;
}

// Axes travel as uint32.
absl::Status CheckAxes(const SafetensorsEntry& entry) {
  for (const int64_t axis : entry.shape) {
    if (axis < 0 || axis > std::numeric_limits<uint32_t>::max()) {
      return absl::DataLossError(absl::StrCat(entry.name, ": an axis must be below 2^32; was ",
                                              ShapeToString(entry.shape)));
    }
  }
  return absl::OkStatus();
}

bool StaysInFolder(absl::string_view file) {
  if (file.empty() || file[0] == '/' || file.find('\0') != file.npos) return false;
  for (absl::string_view part : absl::StrSplit(file, '/')) {
    if (part == ".." || part == "." || part.empty()) return false;
  }
  return true;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  CLIENT_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForRead(path));
  return ReadAll(fd, path, max_bytes);
}

absl::StatusOr<std::unique_ptr<CheckpointFolder>> CheckpointFolder::Open(const std::string& dir) {
  auto folder = std::unique_ptr<CheckpointFolder>(new CheckpointFolder);
  CLIENT_ASSIGN_OR_RETURN(folder->config_json_,
                          ReadTextFile(absl::StrCat(dir, "/config.json"), kMaxConfigBytes));
  const std::string index = absl::StrCat(dir, "/model.safetensors.index.json");
  const std::string single = absl::StrCat(dir, "/model.safetensors");
  if (Exists(index)) {
    CLIENT_RETURN_IF_ERROR(folder->OpenIndex(dir, index));
  } else if (Exists(single)) {
    CLIENT_RETURN_IF_ERROR(folder->OpenSingle(single));
  } else {
    return absl::NotFoundError(absl::StrCat(
        dir, ": must hold model.safetensors.index.json or model.safetensors; was without"));
  }
  std::sort(folder->tensors_.begin(), folder->tensors_.end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
  return folder;
}

absl::Status CheckpointFolder::OpenSingle(const std::string& path) {
  CLIENT_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(path));
  for (const SafetensorsEntry& entry : file->header().entries) {
    CLIENT_RETURN_IF_ERROR(Add(entry.name, file));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::OpenIndex(const std::string& dir, const std::string& index_path) {
  CLIENT_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  CLIENT_ASSIGN_OR_RETURN(const nlohmann::json index, ParseStrictJson(text, index_path));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return absl::DataLossError(
        absl::StrCat(index_path, ": must be JSON with an object weight_map; was not"));
  }
  std::map<std::string, std::shared_ptr<const SafetensorsFile>> files;
  for (const auto& [name, value] : index["weight_map"].items()) {
    if (!value.is_string() || !StaysInFolder(value.get<std::string>())) {
      return absl::DataLossError(absl::StrCat(index_path,
                                              ": weight_map must name files of its folder; was ",
                                              value.dump(), " for ", name));
    }
    const std::string file_name = value.get<std::string>();
    std::shared_ptr<const SafetensorsFile>& file = files[file_name];
    if (file == nullptr) {
      auto opened = SafetensorsFile::Open(absl::StrCat(dir, "/", file_name));
      if (!opened.ok()) return absl::DataLossError(opened.status().message());
      file = *std::move(opened);
    }
    if (file->Find(name) == nullptr) {
      return absl::DataLossError(absl::StrCat(index_path, ": weight_map must be true; was ", name,
                                              " in ", file_name, ", which has no such tensor"));
    }
    CLIENT_RETURN_IF_ERROR(Add(name, file));
  }
  return absl::OkStatus();
}

absl::Status CheckpointFolder::Add(const std::string& name,
                                   const std::shared_ptr<const SafetensorsFile>& file) {
  const SafetensorsEntry& entry = *file->Find(name);
  CLIENT_RETURN_IF_ERROR(CheckAxes(entry));
  file_of_[name] = file;
  tensors_.push_back(Describe(entry));
  return absl::OkStatus();
}

absl::StatusOr<OwnedTensor> CheckpointFolder::Read(const std::string& name) const {
  const auto found = file_of_.find(name);
  if (found == file_of_.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor: must be in the checkpoint; was \"", name, "\""));
  }
  return found->second->Read(name);
}

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::Open(const std::string& path) {
  auto weights = std::unique_ptr<WeightsFile>(new WeightsFile);
  CLIENT_ASSIGN_OR_RETURN(weights->file_, SafetensorsFile::Open(path));
  for (const SafetensorsEntry& entry : weights->file_->header().entries) {
    CLIENT_RETURN_IF_ERROR(CheckAxes(entry));
    weights->tensors_.push_back(Describe(entry));
  }
  std::sort(weights->tensors_.begin(), weights->tensors_.end(),
            [](const auto& a, const auto& b) { return a.name() < b.name(); });
  return weights;
}

absl::StatusOr<OwnedTensor> WeightsFile::Read(const std::string& name) const {
  return file_->Read(name);
}

absl::Status DescribeTensors(const TensorSource& source, const std::vector<std::string>& names,
                             v1::UploadHeader* header) {
  int64_t total_bytes = 0;
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) continue;
    const auto& tensors = source.tensors();
    const auto found = std::lower_bound(
        tensors.begin(), tensors.end(), name,
        [](const v1::StoredTensor& tensor, const std::string& key) { return tensor.name() < key; });
    if (found == tensors.end() || found->name() != name) {
      return absl::NotFoundError(
          absl::StrCat("tensors: must be in the weights; was \"", name, "\""));
    }
    const std::optional<DType> dtype = DTypeFromName(found->dtype());
    if (!dtype.has_value()) {
      return absl::UnimplementedError(
          absl::StrCat(name, ": dtype must be one of F32, BF16, F16, F64; was ", found->dtype()));
    }
    const Shape shape(found->shape().begin(), found->shape().end());
    total_bytes += NumElements(shape).value_or(0) * static_cast<int64_t>(DTypeBytes(*dtype));
    *header->add_tensors() = *found;
  }
  header->set_total_bytes(total_bytes);
  return absl::OkStatus();
}

std::vector<std::string> SpecTensorNames(const v1::TensorNames& names) {
  const google::protobuf::Reflection& reflection = *names.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(names, &fields);  // those with a name in them
  std::vector<std::string> list;
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (!field->is_repeated()) {
      list.push_back(reflection.GetString(names, field));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(names, field); ++i) {
      list.push_back(reflection.GetRepeatedString(names, field, i));
    }
  }
  return list;
}

absl::Status DescribeSavedLayer(const WeightsFile& file, const std::string& path,
                                v1::UploadHeader* header) {
  const auto entry = [&file](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  const std::string format = entry("headwise.format");
  if (format.empty()) {
    return absl::DataLossError(
        absl::StrCat(path, ": must be a saved layer; was without headwise.format in its metadata"));
  }
  if (format != "1") {
    return absl::UnimplementedError(
        absl::StrCat(path, ": headwise.format must be 1 in this version; was ", format));
  }
  absl::StatusOr<v1::LayerSpec> spec = ParseSpec(entry("headwise.spec"));
  if (!spec.ok()) return absl::DataLossError(absl::StrCat(path, ": ", spec.status().message()));
  *header->mutable_spec() = *std::move(spec);
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;  // it is for show only
  const std::string origin = entry("headwise.origin");
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(origin.data(), origin.size()), header->mutable_origin(),
      options);
  if (parsed.ok()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": headwise.origin must be JSON of LayerOrigin; was ",
                   Printable(absl::string_view(parsed.message().data(), parsed.message().size()))));
}

absl::StatusOr<v1::LayerSpec> ParseSpec(absl::string_view json) {
  v1::LayerSpec spec;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = false;
  const auto status = google::protobuf::util::JsonStringToMessage(
      google::protobuf::StringPiece(json.data(), json.size()), &spec, options);
  if (!status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "spec: must be JSON of LayerSpec; was ",
        Printable(absl::string_view(status.message().data(), status.message().size()))));
  }
  return spec;
}

bool SendChunks(uint32_t tensor, absl::string_view data,
                const std::function<bool(const v1::UploadLayerRequest&)>& send) {
  v1::UploadLayerRequest request;
  v1::UploadChunk* chunk = request.mutable_chunk();
  chunk->set_tensor(tensor);
  for (size_t offset = 0; offset < data.size(); offset += kUploadChunkBytes) {
    const absl::string_view part = data.substr(offset, kUploadChunkBytes);
    chunk->set_offset(static_cast<int64_t>(offset));
    chunk->set_data(part.data(), part.size());
    chunk->set_crc32c(static_cast<uint32_t>(absl::ComputeCrc32c(part)));
    if (!send(request)) return false;
  }
  return true;
}

}  // namespace headwise::client
