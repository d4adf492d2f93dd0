// SPDX-License-Identifier: Apache-2.0
// Traces without a server: index arithmetic, typed layers, text.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "client/learn/axes.h"
#include "client/learn/blocks.h"
#include "client/learn/layer_json.h"
#include "client/learn/trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_client.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(AxesTest, OffsetsAndIndicesAreInverse) {
  const Shape shape = {3, 2, 4};
  int64_t offset = 0;
  for (int64_t a = 0; a < 3; ++a) {
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t c = 0; c < 4; ++c, ++offset) {
        EXPECT_EQ(OffsetOf(shape, {a, b, c}), offset);
        EXPECT_THAT(IndexOf(shape, offset), ElementsAre(a, b, c));
      }
    }
  }
}

TEST(AxesTest, ColumnsOfUnequalHeads) {
  const HeadColumns columns = ColumnsOf({1, 3, 2});
  EXPECT_THAT(columns.begins, ElementsAre(0, 1, 4));
  EXPECT_EQ(columns.total, 6);
  EXPECT_FALSE(columns.equal());
  EXPECT_EQ(columns.Text(0), "0");
  EXPECT_EQ(columns.Text(1), "1-3");
  EXPECT_TRUE(ColumnsOf({2, 2}).equal());
}

TEST(LayoutTest, FollowsTheSpecsDefaultsAndItsMap) {
  v1::LayerSpec spec;
  spec.set_heads(4);
  spec.set_kv_heads(2);
  spec.add_dk(9);
  spec.add_dv(2);
  HeadLayout layout = LayoutOf(spec);
  EXPECT_THAT(layout.query_to_kv, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(layout.head_ids, ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(layout.q.total, 36);
  EXPECT_EQ(layout.k.total, 18);
  EXPECT_EQ(layout.v.total, 4);
  EXPECT_DOUBLE_EQ(layout.scale[3], 1.0 / 3.0);
  spec.set_scale(0.5);
  for (const uint32_t group : {1, 0, 0, 1}) spec.add_query_to_kv(group);
  layout = LayoutOf(spec);
  EXPECT_THAT(layout.query_to_kv, ElementsAre(1, 0, 0, 1));
  EXPECT_DOUBLE_EQ(layout.scale[0], 0.5);
}

TEST(ShortNumberTest, IsWhatPeopleWrite) {
  EXPECT_EQ(ShortNumber(2.0), "2");
  EXPECT_EQ(ShortNumber(-0.0), "0");
  EXPECT_EQ(ShortNumber(0.70710678), "0.7071");
  EXPECT_EQ(ShortNumber(-1.5), "-1.5");
  EXPECT_EQ(ShortNumber(1e-6), "1e-06");
  EXPECT_EQ(ShortNumber(123456789.0), "1.23e+08");
  EXPECT_EQ(ShortNumber(std::numeric_limits<double>::infinity()), "inf");
}

TEST(BlocksTest, AlignColumnsAndStandBesideOneAnother) {
  const Block block = MatrixBlock("a", 2, 2, [](int64_t i, int64_t j) {
    return i == 0 && j == 1 ? NAN : static_cast<double>(10 * i + j) / 4.0;
  });
  EXPECT_THAT(block.lines, ElementsAre("0.00     .", "2.50  2.75"));
  EXPECT_EQ(Beside({block, {"b", {"1"}}}),
            "  a            b\n"
            "  0.00     .   1\n"
            "  2.50  2.75\n");
}

constexpr char kTyped[] = R"({"spec": {"heads": 1, "orientation": "OUT_IN"},
  "weights": {"q": [[1]], "k": [[1]], "v": [[1]], "o": [[1]]}, "x": [[1], [2]]})";

TEST(TypedLayerTest, FillsInNamesAndWidth) {
  const absl::StatusOr<TypedLayer> layer = ParseTypedLayer(kTyped);
  ASSERT_TRUE(layer.ok()) << layer.status();
  EXPECT_EQ(layer->spec.d_model(), 1u);
  EXPECT_EQ(layer->spec.tensors().o(), "o");
  EXPECT_EQ(layer->spec.tensors().o_bias(), "");
  EXPECT_THAT(layer->input.x().shape(), ElementsAre(2, 1));
  EXPECT_EQ(layer->weights.size(), 4u);
}

TEST(TypedLayerTest, TakesLengthsAndAMemory) {
  const absl::StatusOr<TypedLayer> layer = ParseTypedLayer(
      R"({"spec": {"heads": 1}, "weights": {}, "x": [[1], [2]], "lengths": [2, 0],
          "memory": [[3], [4], [5]]})");
  ASSERT_TRUE(layer.ok()) << layer.status();
  EXPECT_THAT(layer->input.lengths(), ElementsAre(2, 0));
  EXPECT_THAT(layer->input.memory().shape(), ElementsAre(3, 1));
}

TEST(TypedLayerTest, RefusalsNameThePlace) {
  const struct {
    const char* json;
    const char* message;
  } kCases[] = {
      {"[]", "layer-json: must be an object; was array"},
      {R"({"spec": {}, "weights": {}})",
       "layer-json: must hold spec, weights and x; was without x"},
      {R"({"spec": {}, "weights": {}, "x": [[1]], "y": 1})",
       "layer-json: must hold spec, weights, x, lengths, memory and nothing else; was y"},
      {R"({"spec": {"heads": "many"}, "weights": {}, "x": [[1]]})", "spec: must be JSON of"},
      {R"({"spec": {"tensors": {"q": "a"}}, "weights": {}, "x": [[1]]})",
       "spec.tensors: must be absent, as weights are named by their roles; was given"},
      {R"({"spec": {}, "weights": [], "x": [[1]]})", "weights: must be an object; was []"},
      {R"({"spec": {}, "weights": {"w": [[1]]}, "x": [[1]]})",
       "weights: must be named q, k, v, o, q_bias, … (fields of TensorNames); was w"},
      {R"({"spec": {}, "weights": {"q": [[1, 2], [3]]}, "x": [[1]]})",
       "weights.q: lists of one level must be equally long (2); was 1"},
      {R"({"spec": {}, "weights": {"q": [[1, "2"]]}, "x": [[1]]})",
       "weights.q: must hold finite numbers; was \"2\""},
      {R"({"spec": {}, "weights": {"q": [[1e99]]}, "x": [[1]]})",
       "weights.q: must hold finite numbers; was 1e+99"},
      {R"({"spec": {}, "weights": {"q": [[1], 2]}, "x": [[1]]})",
       "weights.q: must be lists of equal depth; was 2"},
      {R"({"spec": {}, "weights": {"q": 1}, "x": [[1]]})",
       "weights.q: must be lists of numbers, at most 3 deep; was 1"},
      {R"({"spec": {}, "weights": {"q": [[[[1]]]]}, "x": [[1]]})",
       "weights.q: must be lists of numbers, at most 3 deep; was 4 deep"},
      {R"({"spec": {}, "weights": {}, "x": [1, 2]})",
       "x: must be one list of features a token; was 1 deep"},
      {R"({"spec": {}, "weights": {}, "x": [[1]], "lengths": [-1]})",
       "lengths: must be whole numbers, 0 or more; was -1"},
  };
  for (const auto& [json, message] : kCases) {
    const absl::Status status = ParseTypedLayer(json).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(std::string(status.message()), StartsWith(message));
  }
  EXPECT_EQ(ParseTypedLayer("{").status().code(), absl::StatusCode::kDataLoss);
}

TEST(TraceVerbTest, ChecksItsGrammar) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"trace"},
                                             {"trace", "m0"},
                                             {"trace", "m0", "--layer-json", "f"},
                                             {"trace", "--layer-json", "f", "--input", "x.npy"}}) {
    Script script;
    const Outcome outcome = RunWith(&script, words);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(words);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_EQ(script.calls, 0);
  }
}

TEST(TraceVerbTest, TakesTheTypedLayerAwayWhateverHappens) {
  const TempDir dir;
  const std::string file = dir.Write("layer.json", kTyped);
  Script script;  // its GetLayer gives a layer without heads, its Forward nothing
  script.details.mutable_spec()->set_heads(1);
  script.details.mutable_spec()->set_kv_heads(1);
  const Outcome outcome = RunWith(&script, {"trace", "--layer-json", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("headwise: INTERNAL: answer: "));
  EXPECT_THAT(script.upload_header.name(), StartsWith("learn-"));
  EXPECT_EQ(script.unloaded, script.upload_header.name());
  EXPECT_EQ(script.uploaded.size(), 4u);
}

TEST(TraceVerbTest, PassesTheServersRefusalOn) {
  const TempDir dir;
  const std::string file = dir.Write("layer.json", kTyped);
  Script script;
  script.failure = absl::InvalidArgumentError("spec: must be right; was not");
  const Outcome outcome = RunWith(&script, {"trace", "--layer-json", file});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("spec: must be right"));
}

}  // namespace
}  // namespace headwise::client
