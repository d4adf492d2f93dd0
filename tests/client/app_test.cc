// SPDX-License-Identifier: Apache-2.0
// The command line: exit codes, where text goes, and the shapes of JSON.
#include "client/app.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/verb.h"
#include "core/format/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/client/fake_client.h"
#include "tests/support/temp_dir.h"

namespace headwise::client {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

void ExpectOneLine(const std::string& text) {
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_EQ(text.back(), '\n') << text;
}

TEST(AppTest, CallsWrongGrammarExitCode2) {
  const std::vector<std::vector<std::string>> kWrong = {
      {},
      {"frob"},
      {"list", "--frob"},
      {"list", "extra"},
      {"show"},
      {"load", "m0"},
      {"load", "m0", "--checkpoint", "d"},
      {"load", "m0", "--checkpoint", "d", "--upload", "d", "--layer", "0"},
      {"load", "m0", "--spec", "s"},
      {"load", "m0", "--checkpoint", "d", "--layer", "0", "--dtype", "f16"},
      {"forward", "m0"},
      {"forward", "m0", "--input", "x.npy", "--return", "w"},
      {"ablate", "m0", "--input", "x.npy"},
      {"count"},
      {"count", "--width", "4"},
      {"count", "m0", "--width", "4"},
      {"count", "--width", "x", "--heads", "1"},
      {"prune", "m0", "--as", "n"},
      {"permute", "m0", "--order", "0"},
      {"--timeout", "3", "list"},
      {"--server"}};
  for (const auto& words : kWrong) {
    Script script;
    const Outcome outcome = RunWith(&script, words);
    EXPECT_EQ(outcome.exit_code, 2) << ::testing::PrintToString(words);
    EXPECT_THAT(outcome.out, IsEmpty());
    EXPECT_THAT(outcome.err, StartsWith("headwise: "));
    ExpectOneLine(outcome.err);
    EXPECT_EQ(script.calls, 0);
  }
}

TEST(AppTest, HintsAtTheHelp) {
  Script script;
  EXPECT_THAT(RunWith(&script, {"frob"}).err, HasSubstr("(see headwise --help)"));
  EXPECT_THAT(RunWith(&script, {"list", "--frob"}).err, HasSubstr("(see headwise list --help)"));
  EXPECT_THAT(RunWith(&script, {"forward", "m0"}).err, HasSubstr("--input is missing"));
}

TEST(AppTest, DescribesEveryVerb) {
  Script script;
  const Outcome all = RunWith(&script, {"--help"});
  EXPECT_EQ(all.exit_code, 0);
  for (const Verb& verb : Verbs()) {
    EXPECT_THAT(all.out, HasSubstr(std::string(verb.name)));
    const Outcome one = RunWith(&script, {std::string(verb.name), "--help"});
    EXPECT_EQ(one.exit_code, 0) << verb.name;
    for (const Flag& flag : verb.flags) {
      EXPECT_THAT(one.out, HasSubstr(absl::StrCat("--", flag.name)));
    }
  }
  EXPECT_EQ(script.calls, 0);
}

TEST(AppTest, TakesGlobalFlagsAnywhere) {
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"--server", "h:1", "--timeout=2s", "--json", "list"},
           {"list", "--server=h:1", "--json", "--timeout", "2s"}}) {
    Script script;
    const Outcome outcome = RunWith(&script, words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(script.target, "h:1");
    EXPECT_EQ(script.timeout, absl::Seconds(2));
    EXPECT_EQ(outcome.out, "{\"layers\":[]}\n");
  }
  Script script;
  RunWith(&script, {"list"});
  EXPECT_EQ(script.target, "127.0.0.1:8500");
  EXPECT_EQ(script.timeout, absl::Seconds(30));
}

TEST(AppTest, FindsTheVerbBehindFlagsOfItsOwn) {
  Script script;
  const Outcome outcome = RunWith(&script, {"--width", "4", "--heads", "2", "count"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
}

TEST(AppTest, PrintsTheServersErrorInOneLine) {
  Script script;
  script.failure = absl::InvalidArgumentError("x: width must be 4; was\n5");
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"list"},
                                             {"show", "m"},
                                             {"--json", "info"},
                                             {"unload", "m"},
                                             {"health"},
                                             {"count", "m"},
                                             {"repository"},
                                             {"load", "m", "--checkpoint", "d", "--layer", "0"},
                                             {"split", "m", "--as", "n"}}) {
    const Outcome outcome = RunWith(&script, words);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_EQ(outcome.err, "headwise: INVALID_ARGUMENT: x: width must be 4; was 5\n");
    EXPECT_THAT(outcome.out, IsEmpty());
  }
}

TEST(AppTest, CallsUnreadableFilesExitCode1) {
  Script script;
  for (const auto& words : std::vector<std::vector<std::string>>{
           {"forward", "m", "--input", "/nonexistent/x.npy"},
           {"ablate", "m", "--heads", "0", "--input", "/nonexistent/x.npy"},
           {"load", "m", "--upload", "/nonexistent", "--layer", "0"},
           {"load", "m", "--spec", "/nonexistent", "--weights", "/nonexistent"}}) {
    const Outcome outcome = RunWith(&script, words);
    EXPECT_EQ(outcome.exit_code, 1) << ::testing::PrintToString(words);
    EXPECT_THAT(outcome.err, StartsWith("headwise: NOT_FOUND: "));
    ExpectOneLine(outcome.err);
  }
  EXPECT_EQ(script.calls, 0);
}

TEST(HealthVerbTest, ExitsWithTheAnswer) {
  Script script;
  EXPECT_EQ(RunWith(&script, {"health"}).exit_code, 0);
  EXPECT_EQ(script.health_asked, "");
  EXPECT_EQ(RunWith(&script, {"health", "m0"}).exit_code, 0);
  EXPECT_EQ(script.health_asked, "layer/m0");
  script.health = "NOT_SERVING";
  const Outcome outcome = RunWith(&script, {"health"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, HasSubstr("NOT_SERVING"));
  const Outcome as_json = RunWith(&script, {"health", "--json"});
  EXPECT_EQ(as_json.exit_code, 1);
  EXPECT_EQ(as_json.out, "{\"status\":\"NOT_SERVING\"}\n");
}

TEST(LoadVerbTest, BuildsTheRequest) {
  Script script;
  script.load.mutable_layer()->set_name("m0");
  const Outcome outcome = RunWith(&script, {"load", "m0", "--checkpoint", "minilm", "--layer",
                                            "encoder.3", "--dtype", "bf16", "--replace"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, StartsWith("loaded m0 version 0"));
  EXPECT_EQ(script.load_request.checkpoint(), "minilm");
  EXPECT_EQ(script.load_request.layer(), "encoder.3");
  EXPECT_EQ(script.load_request.dtype(), v1::BF16);
  EXPECT_TRUE(script.load_request.replace());
}

TEST(DeriveVerbsTest, BuildRequests) {
  Script script;
  EXPECT_EQ(RunWith(&script, {"prune", "m", "--heads", "0,3", "--as", "n"}).exit_code, 0);
  EXPECT_EQ(script.derive_request.kind(), v1::DeriveLayerRequest::PRUNE);
  EXPECT_THAT(script.derive_request.heads(), ElementsAre(0, 3));
  EXPECT_EQ(RunWith(&script, {"permute", "m", "--order", "1,0", "--as", "n"}).exit_code, 0);
  EXPECT_EQ(script.derive_request.kind(), v1::DeriveLayerRequest::PERMUTE);
  EXPECT_EQ(RunWith(&script, {"quantize", "m", "--as", "n"}).exit_code, 0);
  EXPECT_EQ(script.derive_request.dtype(), v1::INT8);
}

v1::NamedTensor SmallY() {
  v1::NamedTensor y;
  y.set_name("y");
  y.set_dtype(v1::F32);
  y.add_shape(1);
  y.add_shape(2);
  y.add_axes("token");
  y.add_axes("feature");
  const float values[] = {0.5f, -1.0f};
  y.set_data(values, sizeof(values));
  return y;
}

class FileVerbsTest : public ::testing::Test {
 protected:
  FileVerbsTest() {
    const std::vector<float> x = {1, 2};
    EXPECT_TRUE(WriteSafetensors(x_, {{"x", FloatTensor({1, 2}, x).view()}}).ok());
  }
  const TempDir dir_;
  const std::string x_ = dir_.Path("x.safetensors");
  Script script_;
};

TEST_F(FileVerbsTest, ForwardPrintsTheJsonOfTheInterface) {
  script_.forward.set_layer("m0");
  script_.forward.set_layer_version(1);
  script_.forward.add_lengths(1);
  script_.forward.set_queue_us(12);
  *script_.forward.add_tensors() = SmallY();
  const Outcome outcome = RunWith(&script_, {"forward", "m0", "--input", x_, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "{\"layer\":\"m0\",\"layer_version\":1,\"request_id\":\"\",\"lengths\":[1],"
            "\"batch_requests\":0,\"batch_tokens\":0,\"queue_us\":12,\"compute_us\":0,\"tensors\":["
            "{\"name\":\"y\",\"dtype\":\"F32\",\"shape\":[1,2],\"axes\":[\"token\",\"feature\"],"
            "\"head_ids\":[],\"offsets\":[]}]}\n");
  EXPECT_THAT(script_.forward_request.outputs(), ElementsAre(v1::Y));
}

TEST_F(FileVerbsTest, ClientIdAndPriorityAreSent) {
  Script script;
  EXPECT_EQ(
      RunWith(&script, {"--client-id", "alice", "forward", "m0", "--input", x_, "--priority", "-3"})
          .exit_code,
      0);
  EXPECT_EQ(script.client_id, "alice");
  EXPECT_EQ(script.forward_request.priority(), -3);
  EXPECT_EQ(RunWith(&script, {"ablate", "m0", "--heads", "0", "--input", x_, "--priority", "9"})
                .exit_code,
            0);
  EXPECT_EQ(script.client_id, "");
  EXPECT_EQ(script.ablate_request.priority(), 9);
  EXPECT_EQ(RunWith(&script, {"forward", "m0", "--input", x_, "--priority", "high"}).exit_code, 2);
  EXPECT_EQ(RunWith(&script, {"--client-id", std::string(200, 'x'), "list"}).exit_code, 2);
}

TEST_F(FileVerbsTest, AnalyzeBuildsTheRequestAndShowsFindingsOnly) {
  script_.analysis.set_layer("m0");
  script_.analysis.add_heads()->mutable_self_mass()->set_value(0.25);
  for (const bool finding : {true, false}) {
    v1::HeadPair* pair = script_.analysis.add_pairs();
    pair->add_heads(finding ? 3 : 4);
    pair->add_heads(5);
    pair->mutable_cka()->set_value(0.75);
    pair->mutable_cka()->set_finding(finding);
  }
  const Outcome outcome = RunWith(&script_, {"analyze", "m0", "--input", x_, "--permutations", "99",
                                             "--seed", "4", "--max-tokens", "7"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(script_.analyze_request.permutations(), 99u);
  EXPECT_EQ(script_.analyze_request.seed(), 4u);
  EXPECT_EQ(script_.analyze_request.max_tokens(), 7u);
  EXPECT_THAT(outcome.out, HasSubstr("0.250"));
  EXPECT_THAT(outcome.out, HasSubstr("3,5"));
  EXPECT_THAT(outcome.out, ::testing::Not(HasSubstr("4,5")));
}

TEST_F(FileVerbsTest, ForwardWritesTheTensorsAndShowsTheirStart) {
  *script_.forward.add_tensors() = SmallY();
  const std::string output = dir_.Path("out.safetensors");
  const Outcome outcome =
      RunWith(&script_, {"forward", "m0", "--input", x_, "--return", "y,p,y", "--output", output});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(script_.forward_request.outputs(), ElementsAre(v1::Y, v1::P));
  EXPECT_THAT(outcome.out, HasSubstr("y starts 0.500000 -1.000000"));
  const auto file = SafetensorsFile::Open(output);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->header().entries.size(), 1u);
  EXPECT_THAT(*ToFloats((*file)->Read("y")->view(), "y"), ElementsAre(0.5f, -1.0f));
}

TEST_F(FileVerbsTest, ForwardRefusesAnAnswerWhoseBytesDoNotFit) {
  *script_.forward.add_tensors() = SmallY();
  script_.forward.mutable_tensors(0)->set_data("abc");
  const Outcome outcome =
      RunWith(&script_, {"forward", "m0", "--input", x_, "--output", dir_.Path("out.safetensors")});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("headwise: INTERNAL: answer: y must hold the bytes"));
}

TEST_F(FileVerbsTest, AblatePrintsTheJsonOfTheInterface) {
  v1::AblateResult& result = script_.ablate;
  result.set_layer("m0");
  result.set_sweep(v1::LEAVE_ONE_OUT);
  result.set_target(v1::HEADS);
  v1::AblationEffect* effect = result.add_ablations();
  v1::Intervention* intervention = effect->add_interventions();
  intervention->set_kind(v1::Intervention::ZERO);
  intervention->add_heads(0);
  effect->mutable_effect()->set_l2(21);
  effect->mutable_effect()->set_cosine(__builtin_nan(""));
  const Outcome outcome =
      RunWith(&script_, {"ablate", "m0", "--input", x_, "--sweep", "leave-one-out", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["sweep"], "LEAVE_ONE_OUT");
  const json& ablation = answer["ablations"][0];
  EXPECT_EQ(ablation["interventions"][0]["kind"], "ZERO");
  EXPECT_EQ(ablation["interventions"][0]["groups"], json::array());
  EXPECT_EQ(ablation["interventions"][0]["scale"], 0.0);
  EXPECT_EQ(ablation["interventions"][0]["token_begin"], 0);
  EXPECT_FALSE(ablation["interventions"][0].contains("token_end"));
  EXPECT_EQ(ablation["effect"]["l2"], 21.0);
  EXPECT_EQ(ablation["effect"]["cosine"], "NaN");
  EXPECT_FALSE(ablation["effect"].contains("relative_l2"));
  EXPECT_FALSE(ablation.contains("intervals"));
  EXPECT_EQ(answer["tensors"], json::array());
}

TEST_F(FileVerbsTest, AblateDrawsBars) {
  for (const uint32_t head : {0u, 1u, 2u}) {
    v1::AblationEffect* effect = script_.ablate.add_ablations();
    effect->add_heads(head);
    effect->add_interventions()->set_kind(v1::Intervention::ZERO);
    if (head == 2) continue;  // undefined: no figure, no bar
    effect->mutable_effect()->set_relative_l2(head == 0 ? 0.4 : 0.1);
    effect->mutable_effect()->set_cosine(0.9);
  }
  const Outcome outcome =
      RunWith(&script_, {"ablate", "m0", "--input", x_, "--sweep", "leave-one-out"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("40.00 %  -         0.9000  " + std::string(40, '#') + "\n"));
  EXPECT_THAT(outcome.out, HasSubstr("10.00 %  -         0.9000  " + std::string(10, '#') + "\n"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("nan")));
}

TEST(ShowVerbTest, PrintsJsonWithDefaultsAndWithoutUnsetOptionals) {
  Script script;
  script.details.set_name("m0");
  script.details.mutable_spec()->set_d_model(4);
  script.details.mutable_spec()->mutable_mask()->set_causal(true);
  script.details.add_head_ids(0);
  const Outcome outcome = RunWith(&script, {"show", "m0", "--json"});
  const json answer = json::parse(outcome.out);
  EXPECT_EQ(answer["spec"]["mask"], json({{"causal", true}}));
  EXPECT_EQ(answer["spec"]["head_ids"], json::array());
  for (const char* absent : {"rope", "softcap", "scale", "clip", "tensors"}) {
    EXPECT_FALSE(answer["spec"].contains(absent)) << absent;
  }
  EXPECT_FALSE(answer.contains("reduced_error"));
  EXPECT_EQ(answer["head_ids"], json::array({0}));
}

TEST(ListVerbTest, PrintsInterfaceJsonAndATable) {
  Script script;
  v1::LayerSummary* layer = script.list.add_layers();
  layer->set_name("m0");
  layer->set_version(1);
  layer->set_state(v1::READY);
  layer->set_family("bert");
  layer->set_dtype(v1::F32);
  layer->set_d_model(384);
  layer->set_heads(12);
  layer->set_kv_heads(12);
  layer->set_weight_bytes(2365440);
  EXPECT_EQ(RunWith(&script, {"list", "--json"}).out,
            "{\"layers\":[{\"name\":\"m0\",\"version\":1,\"state\":\"READY\",\"family\":\"bert\","
            "\"dtype\":\"F32\",\"d_model\":384,\"heads\":12,\"kv_heads\":12,"
            "\"weight_bytes\":\"2365440\"}]}\n");
  EXPECT_THAT(RunWith(&script, {"list"}).out, HasSubstr("2.26 MiB"));
}

TEST(RepositoryVerbTest, PrintsInterfaceJsonAndATable) {
  Script script;
  v1::CheckpointSummary* checkpoint = script.repository.add_checkpoints();
  checkpoint->set_dir("smollm2");
  checkpoint->set_family("llama");
  checkpoint->set_supported(true);
  for (const char* id : {"0", "1", "2", "12"}) checkpoint->add_layers(id);
  EXPECT_EQ(RunWith(&script, {"repository", "--json"}).out,
            "{\"checkpoints\":[{\"dir\":\"smollm2\",\"family\":\"llama\",\"supported\":true,"
            "\"reason\":\"\",\"layers\":[\"0\",\"1\",\"2\",\"12\"]}]}\n");
  EXPECT_THAT(RunWith(&script, {"repository"}).out, HasSubstr("0-2,12"));
}

}  // namespace
}  // namespace headwise::client
