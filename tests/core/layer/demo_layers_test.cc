// SPDX-License-Identifier: Apache-2.0
// The compiled-in layers, their files, and numbers from a program that shares nothing with us
// (tests/data/two_head/make.py).
#include "core/layer/demo_layers.h"

#include <fstream>
#include <memory>
#include <string>

#include "core/format/safetensors.h"
#include "core/format/tensor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/bytes.h"
#include "tests/support/compare.h"
#include "tests/support/reference_helper.h"

namespace headwise {
namespace {

using ::testing::ElementsAreArray;

struct Files {
  const char* name;
  const char* folder;
};

class DemoLayers : public ::testing::TestWithParam<Files> {
 protected:
  static std::string Path(const std::string& file) {
    return TestDataPath(std::string("data/") + GetParam().folder + "/" + file);
  }
  static nlohmann::json ReadJson(const std::string& file) {
    std::ifstream stream(Path(file));
    return nlohmann::json::parse(stream);
  }
  static DemoLayer Layer() {
    for (DemoLayer& layer : headwise::DemoLayers()) {
      if (layer.name == GetParam().name) return layer;
    }
    ADD_FAILURE() << "no demo layer " << GetParam().name;
    return {};
  }
};

void Flatten(const nlohmann::json& value, std::vector<double>* out) {
  if (!value.is_array()) return out->push_back(value.get<double>());
  for (const nlohmann::json& element : value) Flatten(element, out);
}

TEST_P(DemoLayers, FilesHoldTheSameWeights) {
  const std::unique_ptr<SafetensorsFile> file = *SafetensorsFile::Open(Path("weights.safetensors"));
  const DemoLayer layer = Layer();
  EXPECT_EQ(file->header().entries.size(), layer.tensors.size());
  for (const DemoTensor& tensor : layer.tensors) {
    const absl::StatusOr<OwnedTensor> stored = file->Read(tensor.name);
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_EQ(stored->shape, tensor.tensor.shape) << tensor.name;
    EXPECT_EQ(stored->data, tensor.tensor.data) << tensor.name;
  }
  const absl::StatusOr<OwnedTensor> x = ReadTensorFile(Path("x.npy"));
  ASSERT_TRUE(x.ok()) << x.status();
  EXPECT_EQ(x->shape, layer.x.shape);
  EXPECT_EQ(x->data, layer.x.data);
}

TEST_P(DemoLayers, FileHoldsTheSameSpec) {
  const nlohmann::json json = ReadJson("spec.json");
  const LayerSpec spec = *ResolveSpec(Layer().spec);
  EXPECT_EQ(json["d_model"], spec.d_model);
  EXPECT_EQ(json["heads"], spec.heads);
  EXPECT_THAT(json["dk"].get<std::vector<int64_t>>(), ElementsAreArray(spec.dk));
  EXPECT_THAT(json["dv"].get<std::vector<int64_t>>(), ElementsAreArray(spec.dv));
  EXPECT_EQ(json["mask"]["causal"], spec.mask.causal);
  EXPECT_EQ(json["orientation"], "OUT_IN");
  EXPECT_EQ(spec.orientation, Orientation::kOutIn);
}

TEST_P(DemoLayers, ReferenceGivesEveryIntermediateNumber) {
  const DemoLayer demo = Layer();
  TestLayer layer;
  layer.spec = *ResolveSpec(demo.spec);
  layer.matrices = *UnpackWeights(layer.spec, demo.RoleTensors());
  const TestInput input(4, *ToFloats(demo.x.view(), "x"));
  std::map<std::string, std::vector<double>> actual = ReferenceByName(layer, input);
  const nlohmann::json expected = ReadJson("expected.json");
  EXPECT_EQ(expected.size(), 8u);
  for (const auto& [name, values] : expected.items()) {
    std::vector<double> numbers;
    Flatten(values, &numbers);
    const bool per_sequence = name == "p" || name == "scores";
    EXPECT_TRUE(AllNear(actual[per_sequence ? name + ".0" : name], numbers, 1e-14)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, DemoLayers,
                         ::testing::Values(Files{"two-head", "two_head"},
                                           Files{"two-head-unequal", "two_head_unequal"}),
                         [](const auto& test) { return std::string(test.param.folder); });

}  // namespace
}  // namespace headwise
