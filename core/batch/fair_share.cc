// SPDX-License-Identifier: Apache-2.0
#include "core/batch/fair_share.h"

#include <algorithm>
#include <limits>

namespace headwise {
namespace {

// Names are the callers' to make up: beyond this many, idle accounts go at once.
constexpr size_t kMaxIdle = 1024;

}  // namespace

FairShare::Account* FairShare::Enter(absl::string_view name, int64_t tokens, absl::Time now) {
  auto found = accounts_.find(name);
  if (found == accounts_.end()) {
    Forget(now);
    found = accounts_.try_emplace(std::string(name)).first;
    found->second.name = found->first;
  }
  Account& account = found->second;
  account.used = Place(account);
  ++account.requests;
  account.tokens += tokens;
  account.seen = now;
  return &account;
}

void FairShare::Leave(Account* account, int64_t tokens) {
  --account->requests;
  account->tokens -= tokens;
}

double FairShare::Place(const Account& account) const {
  return std::max(account.used, floor_ - kCredit);
}

void FairShare::Charge(Account* account, double work, absl::Time now) {
  const double start = Place(*account);
  floor_ = std::max(floor_, start);
  account->used = start + work;
  account->seen = now;
  if (account->batch != batch_) account->in_batch = 0.0;
  account->batch = batch_;
  account->in_batch += work;
}

void FairShare::StartBatch(absl::Time now) {
  ++batch_;
  UpdateClaims(now);
}

bool FairShare::UpdateClaims(absl::Time now) {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, account] : accounts_) {
    if (account.requests > 0 || now - account.seen < kRecent) {
      least = std::min(least, Place(account));
    }
  }
  const bool moved = least != claim_;
  claim_ = least;
  return moved;
}

bool FairShare::MayJoin(const Account& account, double work) const {
  const double in_batch = account.batch == batch_ ? account.in_batch : 0.0;
  return in_batch + work <= kQuantum || Place(account) <= claim_;
}

const FairShare::Account* FairShare::Find(absl::string_view name) const {
  const auto found = accounts_.find(name);
  return found == accounts_.end() ? nullptr : &found->second;
}

void FairShare::Forget(absl::Time now) {
  const bool crowded = accounts_.size() >= kMaxIdle;
  std::erase_if(accounts_, [&](const auto& entry) {
    return entry.second.requests == 0 && (crowded || now - entry.second.seen > kForget);
  });
}

}  // namespace headwise
