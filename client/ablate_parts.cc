// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_parts.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/tensors.h"

namespace headwise::client {

absl::Status AblateParts::Add(v1::AblateResponse* response) {
  if (response->has_chunk()) return AddChunk(response->mutable_chunk());
  if (!response->has_result()) return absl::OkStatus();
  if (has_result_) return absl::InternalError("answer: must hold one result; was two");
  result_ = std::move(*response->mutable_result());
  has_result_ = true;
  return absl::OkStatus();
}

absl::Status AblateParts::AddChunk(v1::TensorChunk* chunk) {
  if (!has_result_ || chunk->tensor() >= static_cast<uint32_t>(result_.tensors_size())) {
    return absl::InternalError(
        absl::StrCat("answer: a chunk must follow the result that names its tensor; was tensor ",
                     chunk->tensor()));
  }
  v1::NamedTensor* tensor = result_.mutable_tensors(static_cast<int>(chunk->tensor()));
  std::string* data = tensor->mutable_data();
  if (chunk->offset() != static_cast<int64_t>(data->size())) {
    return absl::InternalError(absl::StrCat("answer: chunks of ", tensor->name(),
                                            " must come in order; was offset ", chunk->offset(),
                                            " after ", data->size(), " bytes"));
  }
  if (data->empty()) {
    data->swap(*chunk->mutable_data());
  } else {
    data->append(chunk->data());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::AblateResult> AblateParts::Take() {
  if (!has_result_) return absl::InternalError("answer: must hold a result; was without");
  for (v1::NamedTensor& tensor : *result_.mutable_tensors()) {
    tensor.mutable_data();  // an empty tensor has no chunk
    const absl::Status fits = CheckBytes(tensor);
    if (!fits.ok()) return fits;
  }
  return std::move(result_);
}

}  // namespace headwise::client
