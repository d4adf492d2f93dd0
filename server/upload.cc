// SPDX-License-Identifier: Apache-2.0
#include "server/upload.h"

#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/crc/crc32c.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/dtype.h"
#include "core/base/rules.h"
#include "core/base/tensor.h"
#include "core/format/file.h"
#include "server/codec_layer.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

constexpr int kMaxUploadTensors = 4096;

// The empty tensor that `wire` announces, and its size in bytes.
absl::StatusOr<std::pair<UploadedTensor, size_t>> Announce(const v1::StoredTensor& wire) {
  const std::string field = absl::StrCat("tensors.", Printable(wire.name()));
  const std::optional<DType> dtype = DTypeFromName(wire.dtype());
  if (!dtype.has_value()) {
    return absl::UnimplementedError(
        absl::StrCat(field, ": must have a dtype that is known; was ", Printable(wire.dtype())));
  }
  UploadedTensor tensor{wire.name(), {*dtype, ToInt64s(wire.shape()), {}}};
  const std::optional<int64_t> elements = NumElements(tensor.tensor.shape);
  if (wire.shape_size() > kMaxAxes || !elements.has_value() || *elements > (int64_t{1} << 56)) {
    return Invalid(field, "must have a shape of at most 8 axes and 2^56 elements",
                   ShapeToString(tensor.tensor.shape));
  }
  const size_t bytes = static_cast<size_t>(*elements) * DTypeBytes(*dtype);
  return std::pair(std::move(tensor), bytes);
}

// Where x enters and y leaves a layer of which only its own settings are known.
constexpr char kOwnXEnters[] = "x is the input of the q projection, after any norm before it";
constexpr char kOwnYLeaves[] = "y is the output of W_O with its bias, before any residual";

// What a saved layer says of itself.
void TakeOrigin(const v1::LayerOrigin& origin, LayerSource* source) {
  source->dir = origin.source().dir();
  source->layer = origin.source().layer();
  source->family = origin.source().family();
  source->prefix = origin.source().prefix();
  source->x_enters = origin.x_enters();
  source->y_leaves = origin.y_leaves();
}

}  // namespace

absl::Status Upload::TakeTensors(const v1::UploadHeader& header, int64_t max_bytes) {
  if (header.tensors_size() == 0 || header.tensors_size() > kMaxUploadTensors) {
    return Invalid("tensors", absl::StrCat("must be 1 to ", kMaxUploadTensors),
                   absl::StrCat(header.tensors_size()));
  }
  std::set<std::string> names;
  for (const v1::StoredTensor& wire : header.tensors()) {
    if (!names.insert(wire.name()).second) {
      return Invalid("tensors", "must have distinct names", absl::StrCat(wire.name(), " twice"));
    }
    absl::StatusOr<std::pair<UploadedTensor, size_t>> announced = Announce(wire);
    if (!announced.ok()) return announced.status();
    load_.tensors.push_back(std::move(announced->first));
    sizes_.push_back(announced->second);
    total_bytes_ += static_cast<int64_t>(announced->second);
    if (total_bytes_ > max_bytes) {
      return absl::ResourceExhaustedError(absl::StrCat("tensors: must be at most ", max_bytes,
                                                       " bytes together (--max-upload-bytes); was ",
                                                       total_bytes_, " or more"));
    }
  }
  if (header.total_bytes() != total_bytes_) {
    return Invalid("total_bytes", absl::StrCat("must be the tensors' sum, ", total_bytes_),
                   absl::StrCat(header.total_bytes()));
  }
  return absl::OkStatus();
}

absl::Status Upload::TakeDescription(const v1::UploadHeader& header) {
  if (header.has_spec()) {
    absl::StatusOr<LayerSpec> spec = DecodeSpec(header.spec());
    if (spec.ok()) spec = ResolveSpec(*std::move(spec));
    if (!spec.ok()) return spec.status();
    load_.spec = *std::move(spec);
    load_.uses = DecodeTensorNames(header.spec().tensors());
    load_.options.source.family = "spec";
    load_.options.source.x_enters = kOwnXEnters;
    load_.options.source.y_leaves = kOwnYLeaves;
    if (header.has_origin()) TakeOrigin(header.origin(), &load_.options.source);
    return absl::OkStatus();
  }
  if (!header.has_checkpoint()) {
    return Invalid("description", "must be a spec or a checkpoint", "absent");
  }
  const v1::CheckpointDescription& checkpoint = header.checkpoint();
  if (checkpoint.config_json().size() > kMaxConfigJsonBytes) {
    return Invalid("config_json", absl::StrCat("must be at most ", kMaxConfigJsonBytes, " bytes"),
                   absl::StrCat(checkpoint.config_json().size()));
  }
  std::vector<StoredTensorInfo> stored;
  for (const v1::StoredTensor& wire : header.tensors()) stored.push_back(DecodeStoredTensor(wire));
  absl::StatusOr<LayerPlan> plan = PlanLayer(checkpoint.config_json(), checkpoint.layer(), stored);
  if (!plan.ok()) return plan.status();
  load_.spec = std::move(plan->spec);
  load_.uses = std::move(plan->tensors);
  load_.options.source = std::move(plan->source);
  load_.options.source.dir = checkpoint.dir();
  return absl::OkStatus();
}

absl::Status Upload::CheckUses() const {
  std::set<absl::string_view> names;
  for (const UploadedTensor& tensor : load_.tensors) names.insert(tensor.name);
  for (const TensorUse& use : load_.uses) {
    if (!names.contains(use.name)) {
      return absl::NotFoundError(absl::StrCat("tensors: must hold the layer's ",
                                              TensorRoleName(use.role), "; was without ",
                                              Printable(use.name)));
    }
  }
  return absl::OkStatus();
}

absl::Status Upload::Begin(const v1::UploadHeader& header, int64_t max_bytes) {
  if (begun_) return Invalid("header", "must come once", "a second one");
  begun_ = true;
  load_.options.name = header.name();
  load_.options.replace = header.replace();
  const absl::StatusOr<DType> dtype = DecodeLayerDType(header.dtype());
  if (!dtype.ok()) return dtype.status();
  load_.options.dtype = *dtype;
  if (absl::Status status = TakeTensors(header, max_bytes); !status.ok()) return status;
  if (absl::Status status = TakeDescription(header); !status.ok()) return status;
  if (absl::Status status = CheckUses(); !status.ok()) return status;
  SkipFullTensors();
  return absl::OkStatus();
}

void Upload::SkipFullTensors() {
  while (current_ < sizes_.size() &&
         load_.tensors[current_].tensor.data.size() == sizes_[current_]) {
    ++current_;
  }
}

absl::Status Upload::Add(const v1::UploadChunk& chunk) {
  if (!begun_) return Invalid("header", "must be the first message", "a chunk");
  const std::string& data = chunk.data();
  if (data.empty() || data.size() > kMaxUploadChunkBytes) {
    return Invalid("chunk.data", absl::StrCat("must be 1 to ", kMaxUploadChunkBytes, " bytes"),
                   absl::StrCat(data.size()));
  }
  const uint32_t crc = static_cast<uint32_t>(absl::ComputeCrc32c(data));
  if (chunk.crc32c() != crc) {
    return Invalid("chunk.crc32c", absl::StrFormat("must be that of the data, 0x%08x", crc),
                   absl::StrFormat("0x%08x", chunk.crc32c()));
  }
  if (current_ == sizes_.size()) {
    return Invalid("chunk", "must not follow the last byte", absl::StrCat(data.size(), " bytes"));
  }
  std::vector<uint8_t>& bytes = load_.tensors[current_].tensor.data;
  if (chunk.tensor() != current_ || chunk.offset() != static_cast<int64_t>(bytes.size())) {
    return Invalid("chunk.offset",
                   absl::StrFormat("must go on at tensor %d offset %d", current_, bytes.size()),
                   absl::StrFormat("tensor %d offset %d", chunk.tensor(), chunk.offset()));
  }
  if (data.size() > sizes_[current_] - bytes.size()) {
    return Invalid("chunk.data",
                   absl::StrFormat("must end with its tensor, after %d bytes",
                                   sizes_[current_] - bytes.size()),
                   absl::StrCat(data.size()));
  }
  if (bytes.empty()) bytes.reserve(sizes_[current_]);
  bytes.insert(bytes.end(), data.begin(), data.end());
  received_bytes_ += static_cast<int64_t>(data.size());
  SkipFullTensors();
  return absl::OkStatus();
}

absl::StatusOr<UploadLoad> Upload::Finish() {
  if (!begun_) return Invalid("header", "must be the first message", "the stream's end");
  if (current_ != sizes_.size()) {
    return Invalid("chunk", absl::StrCat("must come until all ", total_bytes_, " bytes are here"),
                   absl::StrCat("the stream's end after ", received_bytes_));
  }
  return std::move(load_);
}

}  // namespace headwise
