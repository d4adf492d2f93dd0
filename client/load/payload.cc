// SPDX-License-Identifier: Apache-2.0
#include "client/load/payload.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>

#include <random>
#include <utility>

#include "headwise/v1/headwise.pb.h"

namespace headwise::client {
namespace {

using google::protobuf::internal::WireFormatLite;

static_assert(static_cast<int>(v1::ForwardRequest::kInputFieldNumber) ==
                  static_cast<int>(v1::AblateRequest::kInputFieldNumber),
              "one header serves both requests");

// Appends the tag and length of a length-delimited field whose bytes follow.
void AppendFieldHeader(int field, size_t bytes, std::string* out) {
  google::protobuf::io::StringOutputStream stream(out);
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  coded.WriteVarint64(bytes);
}

// The fields besides the input.
std::string Settings(Method method, const std::string& layer, int32_t priority) {
  if (method == Method::kForward) {
    v1::ForwardRequest request;
    request.set_layer(layer);
    request.set_priority(priority);
    return request.SerializeAsString();
  }
  v1::AblateRequest request;
  request.set_layer(layer);
  request.set_sweep(v1::LEAVE_ONE_OUT);
  request.set_priority(priority);
  return request.SerializeAsString();
}

}  // namespace

Payload::Payload(std::string layer, uint32_t d_model, uint32_t max_tokens, uint64_t seed,
                 int32_t priority)
    : layer_(std::move(layer)),
      d_model_(d_model),
      priority_(priority),
      x_(size_t{max_tokens} * d_model) {
  std::mt19937_64 random(seed);
  for (float& value : x_) {
    // Uniform in [-sqrt(3), sqrt(3)): variance 1, as after a norm.
    value = (static_cast<float>(random() >> 40) * 0x1p-23f - 1.0f) * 1.7320508f;
  }
}

grpc::ByteBuffer Payload::Make(Method method, uint32_t tokens) const {
  const size_t data_bytes = size_t{tokens} * d_model_ * sizeof(float);
  v1::Tensor x;
  x.set_dtype(v1::F32);
  x.add_shape(tokens);
  x.add_shape(d_model_);
  // From the inside out: each level's length counts the headers within it and the bytes at the end.
  std::string tensor = x.SerializeAsString();
  AppendFieldHeader(v1::Tensor::kDataFieldNumber, data_bytes, &tensor);
  std::string input;
  AppendFieldHeader(v1::AttentionInput::kXFieldNumber, tensor.size() + data_bytes, &input);
  input += tensor;
  std::string request = Settings(method, layer_, priority_);
  AppendFieldHeader(v1::ForwardRequest::kInputFieldNumber, input.size() + data_bytes, &request);
  request += input;
  const grpc::Slice slices[] = {grpc::Slice(request),
                                grpc::Slice(x_.data(), data_bytes, grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices, 2);
}

}  // namespace headwise::client
