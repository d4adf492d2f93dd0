// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stored_layer.h"

#include <utility>

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "tests/support/bytes.h"

namespace headwise {
namespace {

OwnedTensor ReadTensor(const SafetensorsFile& file, const std::string& name) {
  absl::StatusOr<OwnedTensor> tensor = file.Read(name);
  CHECK_OK(tensor.status()) << name;
  return *std::move(tensor);
}

LayerSpec Resolved(const LayerSpec& spec) {
  absl::StatusOr<LayerSpec> resolved = ResolveSpec(spec);
  CHECK_OK(resolved.status());
  return *std::move(resolved);
}

// Input and answers of layer `key`; `lengths` is the name of the lengths tensor.
StoredCase ReadCase(TestLayer layer, const SafetensorsFile& inputs, const SafetensorsFile& expected,
                    const std::string& key) {
  const std::vector<int64_t> lengths = ReadIntegers(inputs, "lengths");
  TestInput input(layer.spec.d_model, ReadFloats(inputs, key + ".x"), lengths);
  StoredCase stored{std::move(layer), std::move(input), ReadDoubles(expected, key + ".y"), {}};
  for (size_t b = 0; b < lengths.size(); ++b) {
    stored.p.push_back(ReadDoubles(expected, absl::StrCat(key, ".p.", b)));
  }
  return stored;
}

LayerSpec RopeSpecOf(LayerSpec spec, double base) {
  spec.rope = RopeSpec{};
  spec.rope->layout = RopeLayout::kHalf;
  spec.rope->base = base;
  return spec;
}

}  // namespace

std::unique_ptr<SafetensorsFile> OpenSafetensors(const std::string& relative) {
  absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      SafetensorsFile::Open(TestDataPath(relative));
  CHECK_OK(file.status());
  return *std::move(file);
}

std::vector<float> ReadFloats(const SafetensorsFile& file, const std::string& name) {
  return *ToFloats(ReadTensor(file, name).view(), name);
}

std::vector<double> ReadDoubles(const SafetensorsFile& file, const std::string& name) {
  return *ToDoubles(ReadTensor(file, name).view(), name);
}

std::vector<int64_t> ReadIntegers(const SafetensorsFile& file, const std::string& name) {
  return *ToIntegers(ReadTensor(file, name).view(), name);
}

TestLayer ReadBertLayer(const SafetensorsFile& file, const std::string& prefix,
                        const LayerSpec& spec) {
  TestLayer layer;
  layer.spec = Resolved(spec);
  LayerMatrices& m = layer.matrices;
  m.wq = ReadFloats(file, prefix + ".self.query.weight");
  m.bq = ReadFloats(file, prefix + ".self.query.bias");
  m.wk = ReadFloats(file, prefix + ".self.key.weight");
  m.bk = ReadFloats(file, prefix + ".self.key.bias");
  m.wv = ReadFloats(file, prefix + ".self.value.weight");
  m.bv = ReadFloats(file, prefix + ".self.value.bias");
  m.wo = ReadFloats(file, prefix + ".output.dense.weight");
  m.bo = ReadFloats(file, prefix + ".output.dense.bias");
  return layer;
}

TestLayer ReadLlamaLayer(const SafetensorsFile& file, const std::string& prefix,
                         const LayerSpec& spec) {
  TestLayer layer;
  layer.spec = Resolved(spec);
  layer.matrices.wq = ReadFloats(file, prefix + ".q_proj.weight");
  layer.matrices.wk = ReadFloats(file, prefix + ".k_proj.weight");
  layer.matrices.wv = ReadFloats(file, prefix + ".v_proj.weight");
  layer.matrices.wo = ReadFloats(file, prefix + ".o_proj.weight");
  return layer;
}

StoredCase BertGolden(int64_t layer) {
  const auto model = OpenSafetensors("golden/bert/model.safetensors");
  const auto expected = OpenSafetensors("golden/bert/expected.safetensors");
  return ReadCase(ReadBertLayer(*model, absl::StrCat("bert.encoder.layer.", layer, ".attention"),
                                BasicSpec(48, 6)),
                  *expected, *expected, absl::StrCat("layer", layer));
}

StoredCase MistralWindowGolden(int64_t layer) {
  LayerSpec spec = RopeSpecOf(BasicSpec(48, 6), 1000.0);
  spec.kv_heads = 2;
  spec.dk.assign(1, 10);
  spec.mask = {true, 5};
  const auto model = OpenSafetensors("golden/mistral_window/model.safetensors");
  const auto expected = OpenSafetensors("golden/mistral_window/expected.safetensors");
  return ReadCase(ReadLlamaLayer(*model, absl::StrCat("model.layers.", layer, ".self_attn"), spec),
                  *expected, *expected, absl::StrCat("layer", layer));
}

StoredCase Minilm(int64_t layer) {
  const auto model = OpenSafetensors("data/minilm/model.safetensors");
  const auto inputs = OpenSafetensors("data/minilm/inputs.safetensors");
  const auto expected = OpenSafetensors("data/minilm/expected.safetensors");
  return ReadCase(ReadBertLayer(*model, absl::StrCat("encoder.layer.", layer, ".attention"),
                                BasicSpec(384, 12)),
                  *inputs, *expected, absl::StrCat("layer", layer));
}

StoredCase Smollm2(int64_t layer) {
  LayerSpec spec = RopeSpecOf(BasicSpec(576, 9), 100000.0);
  spec.kv_heads = 3;
  spec.mask.causal = true;
  const auto model = OpenSafetensors("data/smollm2/model.safetensors");
  const auto inputs = OpenSafetensors("data/smollm2/inputs.safetensors");
  const auto expected = OpenSafetensors("data/smollm2/expected.safetensors");
  return ReadCase(ReadLlamaLayer(*model, absl::StrCat("model.layers.", layer, ".self_attn"), spec),
                  *inputs, *expected, absl::StrCat("layer", layer));
}

}  // namespace headwise
