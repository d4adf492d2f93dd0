// SPDX-License-Identifier: Apache-2.0
#include "tests/e2e/calls.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "core/format/safetensors.h"
#include "tests/support/stored_layer.h"
#include "tests/support/temp_dir.h"
#include "tests/support/test_layer.h"

namespace headwise {

std::unique_ptr<client::Client> ConnectTo(const ServerProcess& server, double timeout_s) {
  client::ClientOptions options;
  options.timeout = absl::Seconds(timeout_s);
  options.own_connection = true;
  auto client = client::Client::Connect(server.address(), options);
  CHECK(client.ok()) << client.status();
  return *std::move(client);
}

v1::ForwardRequest MakeForwardRequest(const std::string& layer, const std::vector<float>& x,
                                      const std::vector<int64_t>& lengths,
                                      const std::vector<v1::Output>& outputs) {
  v1::ForwardRequest request;
  request.set_layer(layer);
  v1::Tensor* tensor = request.mutable_input()->mutable_x();
  tensor->set_dtype(v1::F32);
  const int64_t rows = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  tensor->add_shape(static_cast<uint32_t>(rows));
  tensor->add_shape(static_cast<uint32_t>(rows == 0 ? 0 : static_cast<int64_t>(x.size()) / rows));
  tensor->set_data(x.data(), x.size() * sizeof(float));
  for (const int64_t length : lengths) {
    request.mutable_input()->add_lengths(static_cast<uint32_t>(length));
  }
  for (const v1::Output output : outputs) request.add_outputs(output);
  return request;
}

std::vector<float> TensorFloats(const v1::ForwardResponse& response, const std::string& name) {
  for (const v1::NamedTensor& tensor : response.tensors()) {
    if (tensor.name() != name) continue;
    std::vector<float> values(tensor.data().size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), tensor.data().data(), tensor.data().size());
    return values;
  }
  ADD_FAILURE() << "no tensor " << name;
  return {};
}

void UploadRandomLayer(client::Client* client, const std::string& name, int64_t d_model,
                       int64_t heads) {
  const TempDir dir;
  const TestLayer layer = RandomLayer(BasicSpec(d_model, heads), 5);
  const LayerTensors tensors(layer);
  std::vector<std::pair<std::string, TensorView>> stored;
  for (const RoleTensor& tensor : tensors.roles()) {
    stored.emplace_back(TensorRoleName(tensor.role), tensor.view);
  }
  const std::string file = dir.Path("weights.safetensors");
  ASSERT_TRUE(WriteSafetensors(file, stored).ok());
  const std::string spec = absl::StrCat(
      R"({"d_model":)", d_model, R"(,"heads":)", heads,
      R"(,"orientation":"OUT_IN","tensors":{"q":"Q_WEIGHT","k":"K_WEIGHT","v":"V_WEIGHT",)",
      R"("o":"O_WEIGHT","q_bias":"Q_BIAS","k_bias":"K_BIAS","v_bias":"V_BIAS","o_bias":"O_BIAS"}})");
  client::UploadTarget target;
  target.name = name;
  const auto uploaded = client->UploadSpecLayer(spec, file, target);
  ASSERT_TRUE(uploaded.ok()) << uploaded.status();
}

void LoadStored(client::Client* client, const std::string& name, const std::string& dir,
                const std::string& layer) {
  v1::LoadLayerRequest request;
  request.set_name(name);
  request.set_checkpoint(dir);
  request.set_layer(layer);
  const auto loaded = client->LoadLayer(request);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
}

StoredInput ReadStoredInput(const std::string& dir, int64_t layer) {
  const auto file = OpenSafetensors(absl::StrCat("data/", dir, "/inputs.safetensors"));
  StoredInput input;
  input.x = ReadFloats(*file, absl::StrCat("layer", layer, ".x"));
  input.lengths = ReadIntegers(*file, "lengths");
  const int64_t rows = std::accumulate(input.lengths.begin(), input.lengths.end(), int64_t{0});
  input.width = static_cast<int64_t>(input.x.size()) / rows;
  return input;
}

}  // namespace headwise
