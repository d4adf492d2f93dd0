// SPDX-License-Identifier: Apache-2.0
// Expected values come from a separate program that has the published formulas.
#include "core/kernel/rope_frequencies.h"

#include <cmath>

#include "core/reference/reference_position.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"

namespace headwise {
namespace {

constexpr double kRounding = 1e-15;
constexpr int64_t kDims = 8;

RopeSpec Scaled(RopeScaling scaling, double base, double factor, double trained) {
  RopeSpec spec;
  spec.layout = RopeLayout::kHalf;
  spec.dims = kDims;
  spec.base = base;
  spec.scaling = scaling;
  spec.factor = factor;
  spec.original_max_positions = trained;
  spec.low_freq_factor = 1.0;
  spec.high_freq_factor = 4.0;
  spec.short_factors = {1.0, 1.5, 2.0, 2.5};
  spec.long_factors = {2.0, 3.0, 4.0, 5.0};
  return spec;
}

void ExpectFrequencies(const RopeSpec& spec, int64_t length, const std::vector<double>& expected) {
  EXPECT_TRUE(AllNear(MakeRopeFrequencies(spec, kDims, length).inv_freq, expected, kRounding));
}

TEST(RopeFrequencies, PlainAndLinear) {
  ExpectFrequencies(Scaled(RopeScaling::kDefault, 1000.0, 1.0, 0.0), 5,
                    {1.0, 0.17782794100389229, 0.031622776601683791, 0.005623413251903491});
  ExpectFrequencies(Scaled(RopeScaling::kLinear, 10000.0, 4.0, 0.0), 5,
                    {0.25, 0.025, 0.0025, 0.00025});
}

TEST(RopeFrequencies, DynamicBeyondTheTrainedLengthOnly) {
  const RopeSpec spec = Scaled(RopeScaling::kDynamic, 1000.0, 3.0, 40.0);
  ExpectFrequencies(spec, 40,
                    {1.0, 0.17782794100389229, 0.031622776601683791, 0.005623413251903491});
  ExpectFrequencies(spec, 100,
                    {1.0, 0.10074243338793258, 0.010149037884922033, 0.0010224387730733619});
}

TEST(RopeFrequencies, Llama3) {
  ExpectFrequencies(Scaled(RopeScaling::kLlama3, 500.0, 8.0, 32.0), 1000,
                    {1.0, 0.031185461937584393, 0.0055901699437494743, 0.0011821770112539697});
}

TEST(RopeFrequencies, Yarn) {
  RopeSpec spec = Scaled(RopeScaling::kYarn, 5000.0, 8.0, 64.0);
  ExpectFrequencies(spec, 1000,
                    {1.0, 0.066892900218903054, 0.0017677669529663688, 0.00021022410381342862});
  spec.truncate = false;
  ExpectFrequencies(spec, 1000,
                    {1.0, 0.023459752594139051, 0.0017677669529663688, 0.00021022410381342862});
  EXPECT_NEAR(MakeRopeFrequencies(spec, kDims, 1).attention_factor, 1.2079441541679836, kRounding);
  spec.attention_factor = 1.5;
  EXPECT_EQ(MakeRopeFrequencies(spec, kDims, 1).attention_factor, 1.5);
  spec.attention_factor.reset();
  spec.factor = 1.0;
  EXPECT_EQ(MakeRopeFrequencies(spec, kDims, 1).attention_factor, 1.0);
}

TEST(RopeFrequencies, LongRopeChoosesByLength) {
  const RopeSpec spec = Scaled(RopeScaling::kLongRope, 10000.0, 4.0, 16.0);
  ExpectFrequencies(spec, 16, {1.0, 0.1 / 1.5, 0.01 / 2.0, 0.001 / 2.5});
  ExpectFrequencies(spec, 17, {1.0 / 2.0, 0.1 / 3.0, 0.01 / 4.0, 0.001 / 5.0});
  // With the short factors too: sqrt(1 + ln 4 / ln 16).
  EXPECT_NEAR(MakeRopeFrequencies(spec, kDims, 1).attention_factor, std::sqrt(1.5), kRounding);
}

TEST(RopeFrequencies, DependsOnLength) {
  for (const RopeScaling scaling :
       {RopeScaling::kDefault, RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kLlama3,
        RopeScaling::kYarn, RopeScaling::kLongRope}) {
    const RopeSpec spec = Scaled(scaling, 10000.0, 4.0, 16.0);
    const bool differs = MakeRopeFrequencies(spec, kDims, 16).inv_freq !=
                         MakeRopeFrequencies(spec, kDims, 64).inv_freq;
    EXPECT_EQ(RopeDependsOnLength(spec), differs) << static_cast<int>(scaling);
  }
}

// The reference has code of its own.
TEST(RopeFrequencies, AgreeWithTheReference) {
  for (const RopeScaling scaling :
       {RopeScaling::kDefault, RopeScaling::kLinear, RopeScaling::kDynamic, RopeScaling::kLlama3,
        RopeScaling::kYarn, RopeScaling::kLongRope}) {
    for (const double trained : {2.0, 17.0, 4096.0}) {
      for (const int64_t length : {0, 1, 17, 5000}) {
        const RopeSpec spec = Scaled(scaling, 150000.0, 32.0, trained);
        const RopeFrequencies made = MakeRopeFrequencies(spec, kDims, length);
        EXPECT_TRUE(AllNear(made.inv_freq, ReferenceFrequencies(spec, static_cast<double>(length)),
                            kRounding));
        EXPECT_NEAR(made.attention_factor, ReferenceAttentionFactor(spec), kRounding);
      }
    }
  }
}

}  // namespace
}  // namespace headwise
