// SPDX-License-Identifier: Apache-2.0
// A call that streams its progress and then one result.
#ifndef HEADWISE_SERVER_PROGRESS_CALL_H_
#define HEADWISE_SERVER_PROGRESS_CALL_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "core/base/mutex.h"
#include "server/call.h"
#include "server/codec_ablation.h"

namespace headwise {

// `Response` has a oneof of `progress` and `result`. Deletes itself when gRPC is done with it;
// Answer or AnswerWith exactly once. Thread-safe.
template <typename Response>
class ProgressCall : public grpc::ServerWriteReactor<Response>, public Call {
 public:
  using Call::Call;

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    failed_ = failed_ || !ok;
    Continue();
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override {
    // Whoever answered may still be leaving its locked section.
    {
      MutexLock lock(&mu_);
    }
    delete this;
  }

 protected:
  // The last word: only a status.
  void Answer(const absl::Status& status) { AnswerWith(status, Response()); }

  // The last word: a result, where `status` is OK.
  void AnswerWith(const absl::Status& status, Response result) {
    MutexLock lock(&mu_);
    status_ = status;
    result_ = std::move(result);
    answered_ = true;
    Continue();
  }

  // Progress that the client has not read by the time of the next one is left out.
  void WriteProgress(absl::string_view stage, int64_t done, int64_t total) {
    MutexLock lock(&mu_);
    progress_.mutable_progress()->set_stage(std::string(stage));
    progress_.mutable_progress()->set_done(static_cast<uint32_t>(done));
    progress_.mutable_progress()->set_total(static_cast<uint32_t>(total));
    waiting_ = true;
    Continue();
  }

  void Note(const RequestProgress& progress) {
    MutexLock lock(&mu_);
    EncodeProgress(progress, progress_.mutable_progress());
    waiting_ = true;
    Continue();
  }

  bool cancelled_or_late() const { return cancelled() || absl::Now() >= deadline(); }
  // What a computation that was stopped answers; OK where it wasn't.
  absl::Status Stopped(absl::string_view during) const {
    if (cancelled()) return absl::CancelledError("call: was cancelled");
    if (!cancelled_or_late()) return absl::OkStatus();
    return absl::DeadlineExceededError("deadline: passed during the " + std::string(during));
  }

 private:
  // Starts what comes next; gRPC's callbacks never run inside a Start or Finish.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (failed_ && answered_) status_.Update(absl::CancelledError("call: was cancelled"));
    if (answered_ && !status_.ok()) return EndStream();
    if (waiting_ && !failed_) {
      waiting_ = false;
      writing_ = true;
      message_ = progress_;
      this->StartWrite(&message_);
    } else if (answered_ && result_.has_result()) {
      writing_ = true;
      message_ = std::move(result_);
      result_.Clear();
      this->StartWrite(&message_);
    } else if (answered_) {
      EndStream();
    }
  }

  void EndStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    this->Finish(End(status_));
  }

  Mutex mu_;
  Response message_;  // belongs to gRPC while `writing_`
  Response progress_ ABSL_GUARDED_BY(mu_);
  Response result_ ABSL_GUARDED_BY(mu_);
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;  // progress to be written
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_PROGRESS_CALL_H_
