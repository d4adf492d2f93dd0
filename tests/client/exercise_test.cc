// SPDX-License-Identifier: Apache-2.0
// What answers to exercises are worth, and how the verb takes them.
#include "client/learn/exercise.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/fake_client.h"

namespace headwise::client {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Exercise ShapeQuestion() {
  Exercise exercise;
  exercise.answer_form = "4 whole numbers with commas";
  exercise.numbers = {2, 8, 10, 64};
  exercise.wrong = {{{2, 10, 8, 64}, "the axes changed places"}};
  return exercise;
}

Verdict Judge(const Exercise& exercise, const std::string& answer) {
  const absl::StatusOr<Verdict> verdict = JudgeAnswer(exercise, answer);
  EXPECT_TRUE(verdict.ok()) << answer << ": " << verdict.status();
  return verdict.ok() ? *verdict : Verdict{};
}

TEST(JudgeTest, TakesAShapeInEverySpelling) {
  const Exercise exercise = ShapeQuestion();
  EXPECT_EQ(exercise.Expected(), "2,8,10,64");
  for (const char* answer :
       {"2,8,10,64", "(2, 8, 10, 64)", " [2 8 10 64]\n", "2x8x10x64", "2;8;10;64"}) {
    EXPECT_TRUE(Judge(exercise, answer).right) << answer;
  }
}

TEST(JudgeTest, SaysWhatAWrongShapeIs) {
  const Exercise exercise = ShapeQuestion();
  const Verdict swapped = Judge(exercise, "2,10,8,64");
  EXPECT_FALSE(swapped.right);
  EXPECT_EQ(swapped.explanation,
            "Not right: it is 2,8,10,64.\n"
            "Your answer is what one gets so: the axes changed places.\n");
  EXPECT_THAT(Judge(exercise, "2,8,10,512").explanation,
              HasSubstr("Where it differs: number 4 is 64, not 512."));
}

TEST(JudgeTest, RefusesAnswersOfAnotherForm) {
  const Exercise exercise = ShapeQuestion();
  for (const std::string answer :
       {"", "  ", "2,8,10", "2,8,10,64,1", "two", "nan,1,2,3", "1e999,1,1,1"}) {
    const absl::Status status = JudgeAnswer(exercise, answer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << answer;
    EXPECT_THAT(std::string(status.message()),
                StartsWith("answer: must be 4 whole numbers with commas; was \""));
  }
  EXPECT_FALSE(JudgeAnswer(exercise, std::string(5000, '1')).ok());
}

TEST(JudgeTest, TakesOneNumberWithThousandsAndWithinItsTolerance) {
  Exercise exercise;
  exercise.numbers = {1600};
  exercise.answer_form = "one whole number";
  exercise.wrong = {{{3200}, "twice as much"}};
  EXPECT_TRUE(Judge(exercise, "1,600").right);
  EXPECT_FALSE(Judge(exercise, "1601").right);
  EXPECT_THAT(Judge(exercise, "3200").explanation, HasSubstr("twice as much"));
  EXPECT_THAT(Judge(exercise, "800").explanation, HasSubstr("off by -800, a factor of 0.5"));
  exercise.numbers = {0.7071};
  exercise.tolerance = 0.005;
  EXPECT_TRUE(Judge(exercise, "0.71").right);
  EXPECT_FALSE(Judge(exercise, "0.72").right);
  // What a mistake gives is no mistake where it is right.
  exercise.wrong = {{{0.7071}, "never said"}};
  EXPECT_TRUE(Judge(exercise, "0.7071").right);
  EXPECT_THAT(Judge(exercise, "0.8").explanation, ::testing::Not(HasSubstr("never said")));
}

TEST(JudgeTest, ExplainsEachLetterThatIsWrong) {
  Exercise exercise;
  exercise.answer_form = "letters with commas";
  exercise.choices = {{"first", true, "because it is"},
                      {"second", false, "because it isn't"},
                      {"third", true, "because"}};
  EXPECT_EQ(exercise.Expected(), "a,c");
  for (const char* answer : {"a,c", "c a", "AC", "ca"}) {
    EXPECT_TRUE(Judge(exercise, answer).right) << answer;
  }
  const Verdict verdict = Judge(exercise, "a,b");
  EXPECT_FALSE(verdict.right);
  EXPECT_EQ(verdict.explanation, "Not right: it is a,c.\n  b: because it isn't\n  c: because\n");
  EXPECT_FALSE(JudgeAnswer(exercise, "d").ok());
  EXPECT_FALSE(JudgeAnswer(exercise, ",").ok());
}

class ClaimTest : public ::testing::Test {
 protected:
  Verdict Claim(const std::string& text) const {
    const absl::StatusOr<Verdict> verdict = JudgeClaim(measured_, text);
    EXPECT_TRUE(verdict.ok()) << text << ": " << verdict.status();
    return verdict.ok() ? *verdict : Verdict{};
  }
  const std::vector<MeasuredHead> measured_ = {
      {3, 0.50, 0.45, 0.55}, {0, 0.30, 0.20, 0.40}, {5, 0.25, 0.15, 0.35}};
};

TEST_F(ClaimTest, AComparisonIsHeldAgainstTheFigures) {
  const Verdict right = Claim("head 3 > head 0");
  EXPECT_TRUE(right.right);
  EXPECT_THAT(right.explanation, HasSubstr("The intervals lie apart"));
  EXPECT_TRUE(Claim("On these sequences, zeroing head 3 changed y more than head 0 did.").right);
  EXPECT_TRUE(Claim("head 5 < head 3").right);
  const Verdict wrong = Claim("head 0 moves y more than head 3");
  EXPECT_FALSE(wrong.right);
  EXPECT_THAT(wrong.explanation, StartsWith("Contradicted by what was measured"));
  EXPECT_THAT(Claim("head 0 > head 5").explanation, HasSubstr("The intervals overlap"));
}

TEST_F(ClaimTest, AFigureIsHeldAgainstItsMeasurement) {
  EXPECT_TRUE(Claim("removing head 0 changes y by 0.3").right);
  EXPECT_FALSE(Claim("head 0 = 0.5").right);
}

TEST_F(ClaimTest, WordsBeyondAMeasurementAreNamed) {
  for (const auto& [claim, words] : std::vector<std::pair<std::string, std::string>>{
           {"head 5 is unnecessary", "unnecessary"},
           {"head 3 understands syntax", "understands syntax"},
           {"head 3 changes y more than head 0 on any text", "any text"}}) {
    const Verdict verdict = Claim(claim);
    EXPECT_FALSE(verdict.right) << claim;
    EXPECT_THAT(verdict.explanation, HasSubstr("in the words: " + words + "."));
  }
}

TEST_F(ClaimTest, RefusesClaimsItCanNotRead) {
  for (const char* claim : {"head 3", "head 7 > head 3", "head 3 > head 7", "heads"}) {
    EXPECT_EQ(JudgeClaim(measured_, claim).status().code(), absl::StatusCode::kInvalidArgument)
        << claim;
  }
}

TEST(ExerciseVerbTest, ChecksItsGrammar) {
  for (const auto& words :
       std::vector<std::vector<std::string>>{{"exercise"},
                                             {"exercise", "--kind", "hard"},
                                             {"exercise", "--kind", "cost", "--seed", "x"}}) {
    Script script;
    EXPECT_EQ(RunWith(&script, words).exit_code, 2) << ::testing::PrintToString(words);
    EXPECT_EQ(script.calls, 0);
  }
  Script script;
  script.failure = absl::UnavailableError("server: must answer; was gone");
  EXPECT_EQ(RunWith(&script, {"exercise", "--kind", "cost"}).exit_code, 1);
}

// A layer whose counts are canned: cost exercises need nothing else.
Script CostScript() {
  Script script;
  script.details = TwoHeadDetails(2);
  for (const char* id :
       {"score_elements", "score_elements_causal", "parameters", "parameters_with_bias",
        "parameters_k", "macs_dense", "macs_causal", "flops_dense", "flops_causal",
        "macs_scores_dense", "macs_values_causal", "flops_q", "activation_bytes",
        "kv_bytes_per_token", "score_tensor_bytes"}) {
    v1::Count* count = script.details.add_counts();
    count->set_id(id);
    count->set_value(1000 + 7 * script.details.counts_size());
    count->set_unit("number");
    count->set_convention("as it is");
  }
  return script;
}

TEST(ExerciseVerbTest, CostsNameTheRowsOfPrunedHeads) {
  Script script = CostScript();
  script.details.mutable_spec()->mutable_qk_norm()->set_q_statistic_rows(6);
  const Outcome asked = RunWith(&script, {"exercise", "m", "--kind", "cost", "--seed", "4"});
  EXPECT_THAT(asked.out,
              HasSubstr("; rows of pruned heads in the norm's statistic: 6 of q, 0 of k; biases:"));
}

TEST(ExerciseVerbTest, AsksAndReadsTheAnswerFromStandardInput) {
  Script script = CostScript();
  const std::vector<std::string> words = {"exercise", "m", "--kind", "cost", "--seed", "4"};
  std::vector<std::string> solve = words;
  solve.push_back("--answers");
  const Outcome solved = RunWith(&script, solve);
  ASSERT_EQ(solved.exit_code, 0) << solved.err;
  const size_t at = solved.out.find("\nAnswer: ") + 9;
  const std::string expected = solved.out.substr(at, solved.out.find('\n', at) - at);

  const Outcome right = RunWith(&script, words, {}, expected + "\n");
  EXPECT_EQ(right.exit_code, 0) << right.err;
  EXPECT_THAT(right.out, StartsWith("Exercise: cost, seed 4\n\nOn m: D 4, H 2 query heads"));
  EXPECT_THAT(right.out, HasSubstr("Answer (one whole number): \nRight: " + expected));
  EXPECT_THAT(right.out, Not(HasSubstr("pruned")));
  const Outcome wrong = RunWith(&script, words, {}, "7\n");
  EXPECT_EQ(wrong.exit_code, 3);
  EXPECT_THAT(wrong.out, HasSubstr("Not right: it is " + expected));
  EXPECT_THAT(wrong.out, HasSubstr("Worked: "));
  const Outcome silent = RunWith(&script, words, {}, "");
  EXPECT_EQ(silent.exit_code, 0);
  EXPECT_THAT(silent.out, HasSubstr("Answer with --answer, or on standard input"));
  const Outcome malformed = RunWith(&script, words, {}, "many\n");
  EXPECT_EQ(malformed.exit_code, 1);
  EXPECT_THAT(malformed.err, HasSubstr("answer: must be one whole number; was \"many\""));
}

TEST(ExerciseVerbTest, TakesTheAnswerAsAnArgumentToo) {
  Script script = CostScript();
  std::vector<std::string> words = {"exercise", "m", "--kind", "cost", "--answer", "7"};
  const Outcome text = RunWith(&script, words, {}, "1\n");
  EXPECT_EQ(text.exit_code, 3);
  EXPECT_THAT(text.out, HasSubstr("Not right"));
  EXPECT_THAT(text.out, ::testing::Not(HasSubstr("Answer (")));
  words.push_back("--json");
  const Outcome as_json = RunWith(&script, words);
  EXPECT_EQ(as_json.exit_code, 3);
  EXPECT_THAT(as_json.out, HasSubstr("\"right\":false"));
  EXPECT_THAT(as_json.out, ::testing::Not(HasSubstr("\"expected\"")));
  EXPECT_THAT(as_json.err, IsEmpty());
}

TEST(ExerciseVerbTest, SaysWhenTheServerHasNoSuchCount) {
  Script script = CostScript();
  script.details.clear_counts();
  const Outcome outcome = RunWith(&script, {"exercise", "m", "--kind", "cost", "--answers"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, StartsWith("headwise: INTERNAL: answer: must hold the count"));
}

}  // namespace
}  // namespace headwise::client
