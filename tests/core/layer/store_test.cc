// SPDX-License-Identifier: Apache-2.0
#include "core/layer/store.h"

#include <gtest/gtest.h>

#include "core/kernel/tile_kernel.h"
#include "tests/support/test_layer.h"

namespace headwise {
namespace {

LayerStore::Handle MakeLayer(const std::string& name, int64_t version) {
  TestLayer test = IdentityLayer(4, 2);
  LayerInfo info;
  info.name = name;
  info.version = version;
  info.spec = *ResolveSpec(test.spec);
  return *AttentionLayer::Create(std::move(info), test.matrices, BestKernelPath());
}

TEST(LayerStore, NamesFollowTheRule) {
  for (const char* good : {"a", "m0", "A.b_c-d", "0"}) {
    EXPECT_TRUE(LayerStore::CheckName(good).ok()) << good;
  }
  for (const char* bad : {"", ".hidden", "a b", "a/b", "../x", "ä"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(LayerStore::CheckName(bad))) << bad;
  }
  EXPECT_TRUE(LayerStore::CheckName(std::string(128, 'a')).ok());
  EXPECT_FALSE(LayerStore::CheckName(std::string(129, 'a')).ok());
}

TEST(LayerStore, VersionsGrowAndOutliveTheLayer) {
  LayerStore store;
  EXPECT_EQ(*store.Reserve("m", false), 1);
  EXPECT_TRUE(absl::IsAlreadyExists(store.Reserve("m", false).status())) << "being loaded";
  store.Publish(MakeLayer("m", 1));
  EXPECT_TRUE(absl::IsAlreadyExists(store.Reserve("m", false).status()));
  EXPECT_EQ(*store.Reserve("m", true), 2);
  store.Abandon("m");
  EXPECT_EQ((*store.Find("m"))->info().version, 1) << "a load that failed changes nothing";
  EXPECT_TRUE(store.Remove("m").ok());
  EXPECT_TRUE(absl::IsNotFound(store.Find("m").status()));
  EXPECT_TRUE(absl::IsNotFound(store.Remove("m").status()));
  EXPECT_EQ(*store.Reserve("m", false), 3);
}

TEST(LayerStore, TheNewerOfTwoReplacementsStays) {
  LayerStore store;
  const int64_t first = *store.Reserve("m", true), second = *store.Reserve("m", true);
  store.Publish(MakeLayer("m", second));
  store.Publish(MakeLayer("m", first));
  EXPECT_EQ((*store.Find("m"))->info().version, second);
}

TEST(LayerStore, AHandleKeepsItsLayer) {
  LayerStore store;
  ASSERT_TRUE(store.Reserve("m", false).ok());
  store.Publish(MakeLayer("m", 1));
  const LayerStore::Handle held = *store.Find("m");
  std::weak_ptr<const AttentionLayer> watched = held;
  ASSERT_TRUE(store.Remove("m").ok());
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(held->info().name, "m");
}

}  // namespace
}  // namespace headwise
