// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_CORE_BATCH_FAIR_SHARE_H_
#define HEADWISE_CORE_BATCH_FAIR_SHARE_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace headwise {

// Who has had how much of the executor, in estimated multiply-adds: one account a client, or one a
// layer. Start-time fair queueing: each account has a virtual time, which its work moves on, and
// the one whose time is least comes first. Who comes back after a pause, or was held up by another
// rule, keeps at most kCredit of what it missed, so nobody saves up the right to starve the others.
// Not thread-safe.
class FairShare {
 public:
  struct Account {
    std::string name;
    double used = 0.0;     // virtual time
    int64_t requests = 0;  // waiting
    int64_t tokens = 0;    // waiting
    double in_batch = 0.0;
    int64_t batch = 0;  // the batch that `in_batch` counts
    absl::Time seen;    // when it last asked or was served
  };

  // About 50 ms of two cores.
  static constexpr double kCredit = 5e9;
  // What an account may always take of one batch: about a millisecond of two cores.
  static constexpr double kQuantum = 1e8;
  // An account seen within that time still has a claim: its next request is likely on its way.
  static constexpr absl::Duration kRecent = absl::Milliseconds(100);
  // An account unseen for that long, with nothing waiting, is forgotten.
  static constexpr absl::Duration kForget = absl::Seconds(10);

  // A request begins to wait. The account stays where it is while it has requests.
  Account* Enter(absl::string_view name, int64_t tokens, absl::Time now);
  // One has stopped waiting, for whatever reason.
  void Leave(Account* account, int64_t tokens);

  // The account's place in the line: the least is next.
  double Place(const Account& account) const;

  // `work` of the account joins the batch that StartBatch began.
  void StartBatch(absl::Time now);
  void Charge(Account* account, double work, absl::Time now);

  // False if more than a quantum of the account in this batch would leave somebody behind who has
  // had less: fair shares hold within a batch too. Judges by the last UpdateClaims.
  bool MayJoin(const Account& account, double work) const;
  // Looks again who is furthest behind. True if that has moved on.
  bool UpdateClaims(absl::Time now);

  // Somebody else is about: bounds on one account's part of the queue apply.
  bool contended() const { return accounts_.size() > 1; }
  const Account* Find(absl::string_view name) const;

 private:
  void Forget(absl::Time now);

  std::map<std::string, Account, std::less<>> accounts_;
  double floor_ = 0.0;  // the largest virtual time at which work has begun
  double claim_ = 0.0;  // the least place of those who have something to claim
  int64_t batch_ = 0;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_FAIR_SHARE_H_
