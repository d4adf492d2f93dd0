// SPDX-License-Identifier: Apache-2.0
#include "core/batch/fair_share.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace headwise {
namespace {

constexpr absl::Time kNow = absl::UnixEpoch();

TEST(FairShare, WhoHasHadLeastIsNext) {
  FairShare shares;
  FairShare::Account* a = shares.Enter("a", 1, kNow);
  FairShare::Account* b = shares.Enter("b", 1, kNow);
  shares.Charge(a, 10.0, kNow);
  EXPECT_LT(shares.Place(*b), shares.Place(*a));
  shares.Charge(b, 11.0, kNow);
  EXPECT_LT(shares.Place(*a), shares.Place(*b));
}

TEST(FairShare, NobodySavesUpMoreThanTheCredit) {
  FairShare shares;
  FairShare::Account* idle = shares.Enter("idle", 1, kNow);
  shares.Leave(idle, 1);
  FairShare::Account* busy = shares.Enter("busy", 1, kNow);
  for (int i = 0; i < 100; ++i) shares.Charge(busy, FairShare::kCredit, kNow);
  idle = shares.Enter("idle", 1, kNow);
  EXPECT_DOUBLE_EQ(shares.Place(*busy) - shares.Place(*idle), 2 * FairShare::kCredit);
}

TEST(FairShare, ABatchLeavesNobodyBehind) {
  FairShare shares;
  FairShare::Account* a = shares.Enter("a", 1, kNow);
  FairShare::Account* b = shares.Enter("b", 1, kNow);
  constexpr double kLarge = 10 * FairShare::kQuantum;
  shares.StartBatch(kNow);
  EXPECT_TRUE(shares.MayJoin(*a, kLarge));
  shares.Charge(a, kLarge, kNow);
  EXPECT_FALSE(shares.MayJoin(*a, kLarge));
  EXPECT_TRUE(shares.MayJoin(*b, kLarge));
  shares.Charge(b, kLarge, kNow);
  EXPECT_TRUE(shares.UpdateClaims(kNow));
  EXPECT_TRUE(shares.MayJoin(*a, kLarge));
}

TEST(FairShare, AClaimLapses) {
  FairShare shares;
  shares.Leave(shares.Enter("gone", 1, kNow), 1);
  FairShare::Account* a = shares.Enter("a", 1, kNow);
  shares.StartBatch(kNow);
  shares.Charge(a, 10 * FairShare::kQuantum, kNow);
  EXPECT_FALSE(shares.MayJoin(*a, 10 * FairShare::kQuantum));
  shares.UpdateClaims(kNow + FairShare::kRecent);
  EXPECT_TRUE(shares.MayJoin(*a, 10 * FairShare::kQuantum));
}

TEST(FairShare, MadeUpNamesAreForgotten) {
  FairShare shares;
  for (int i = 0; i < 10000; ++i) shares.Leave(shares.Enter(absl::StrCat(i), 1, kNow), 1);
  int known = 0;
  for (int i = 0; i < 10000; ++i) known += shares.Find(absl::StrCat(i)) != nullptr ? 1 : 0;
  EXPECT_LE(known, 1024);
}

}  // namespace
}  // namespace headwise
