// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/codec_input.h"
#include "server/service.h"

namespace headwise {
namespace {

// One ForwardStream. Reads while fewer than --max-stream-requests are unanswered or have answers
// that the caller hasn't taken: a caller that stops reading stops being read. Their answers hold at
// most --max-output-bytes together: a request whose answer wouldn't fit beside the others waits
// here until it does. Deletes itself when gRPC is done with it.
class ForwardStreamCall final
    : public grpc::ServerBidiReactor<v1::ForwardRequest, v1::ForwardStreamResponse>,
      public Call {
 public:
  ForwardStreamCall(const Services& services, const Startup& startup,
                    grpc::CallbackServerContext* context)
      : Call(services, context, "ForwardStream", ""), startup_(startup) {}

  void Start() {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    MutexLock lock(&mu_);
    if (!status.ok()) return EndStream(status);
    ReadNext();
  }

  void OnReadDone(bool ok) override {
    std::unique_ptr<Request> request;
    {
      MutexLock lock(&mu_);
      if (!ok) {
        reading_ = false;
        no_more_reads_ = true;
        return Continue();
      }
      if (ended_) return;
      ++under_way_;
      request = std::move(incoming_);
      request->arrived = absl::Now();
    }
    Take(std::move(request));
    {
      MutexLock lock(&mu_);
      reading_ = false;
      Continue();
    }
    TakeParked();
  }

  void OnWriteDone(bool ok) override {
    {
      MutexLock lock(&mu_);
      writing_ = false;
      answer_bytes_ -= answers_.front()->answer_memory.bytes();
      answers_.pop_front();
      --under_way_;
      if (!ok) broken_ = true;
      Continue();
    }
    TakeParked();
  }

  void OnCancel() override {
    Cancel();
    MutexLock lock(&mu_);
    Continue();
  }
  void Abort() override {
    Call::Abort();
    MutexLock lock(&mu_);
    Continue();
  }
  void OnDraining() override {
    MutexLock lock(&mu_);
    draining_ = true;
    Continue();
  }
  void OnDone() override {
    {
      MutexLock lock(&mu_);
    }  // whoever finished the stream has left its locked section
    delete this;
  }

 private:
  // A request from its arrival until its answer has been taken.
  struct Request {
    v1::ForwardRequest message;
    v1::ForwardStreamResponse answer;
    absl::Time arrived;
    RequestMemory::Hold message_memory, answer_memory;
    int64_t answer_bytes = 0;  // at most, known once the engine has looked at the request
    bool park = false;         // its answer has no room beside the others yet
  };

  // Decodes, and hands over to the engine or answers at once. Without the lock: a refusal comes
  // back on this thread.
  void Take(std::unique_ptr<Request> request) {
    Request* const raw = request.get();
    absl::StatusOr<ForwardRequest> accepted = Accept(raw);
    if (!accepted.ok()) return Answer(std::move(request), accepted.status());
    // Shared, because std::function wants what it holds to be copyable.
    auto held = std::make_shared<std::unique_ptr<Request>>(std::move(request));
    services_.engine->Forward(*std::move(accepted),
                              [this, held](absl::StatusOr<ForwardResult> result) {
                                Answer(std::move(*held), std::move(result));
                              });
  }

  absl::StatusOr<ForwardRequest> Accept(Request* request) {
    const v1::ForwardRequest& message = request->message;
    absl::Status status = std::exchange(request->park, false) ? absl::OkStatus() : Enter(request);
    if (!status.ok()) return status;
    absl::StatusOr<ForwardRequest> decoded = DecodeForward(message);
    if (!decoded.ok()) return decoded;
    decoded->context = request_context(message.priority());
    decoded->context.reserve_answer = [this, request](int64_t bytes) {
      return Reserve(request, bytes);
    };
    return decoded;
  }

  // What is checked once, when the request arrives.
  absl::Status Enter(Request* request) {
    const v1::ForwardRequest& message = request->message;
    request->answer.set_request_id(message.request_id());
    absl::Status status = CheckRequestId(message.request_id());
    if (message.request_id().empty()) {
      request->answer.set_request_id(absl::StrCat(request_id(), "-", ++requests_));
    }
    status.Update(startup_.Check(message.layer()));
    if (!status.ok()) return status;
    return request->message_memory.Take(services_.memory,
                                        static_cast<int64_t>(message.ByteSizeLong()));
  }

  // Room for the answer, in this stream's part and in the server's budget.
  absl::Status Reserve(Request* request, int64_t bytes) {
    MutexLock lock(&mu_);
    request->answer_bytes = bytes;
    request->park = !Fits(*request);
    if (request->park) return absl::CancelledError("request: must wait for earlier answers");
    if (absl::Status status = request->answer_memory.Take(services_.memory, bytes); !status.ok()) {
      return status;
    }
    answer_bytes_ += bytes;
    return absl::OkStatus();
  }

  // Whether the request's answer has room beside those that are under way. Alone it always has.
  bool Fits(const Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return answer_bytes_ == 0 ||
           request.answer_bytes <= services_.options->max_output_bytes - answer_bytes_;
  }

  // Hands over what is parked, once it fits. From gRPC's callbacks, which keep the stream alive.
  void TakeParked() {
    std::unique_ptr<Request> request;
    {
      MutexLock lock(&mu_);
      if (parked_ == nullptr || !Fits(*parked_)) return;
      request = std::move(parked_);
    }
    Take(std::move(request));
    MutexLock lock(&mu_);
    Continue();
  }

  void Answer(std::unique_ptr<Request> request, absl::StatusOr<ForwardResult> result) {
    if (request->park) {
      MutexLock lock(&mu_);
      parked_ = std::move(request);
      return Continue();
    }
    v1::ForwardStreamResponse& answer = request->answer;
    const absl::Time begin = absl::Now();
    PassInfo pass;
    if (result.ok()) {
      pass = result->pass;
      EncodeForward(*std::move(result), answer.request_id(), answer.mutable_response());
    } else {
      answer.set_status_code(static_cast<int32_t>(result.status().code()));
      answer.set_status_message(std::string(result.status().message()));
    }
    const absl::Time end = absl::Now();
    const PassInfo* const ran = result.ok() ? &pass : nullptr;
    RecordPart({request->message.layer(), "ForwardStream", result.status(), end - request->arrived,
                ran, end - begin},
               answer.request_id());
    request->message.Clear();
    MutexLock lock(&mu_);
    const int64_t reserved = request->answer_memory.bytes();
    request->answer_memory.Settle(static_cast<int64_t>(answer.ByteSizeLong()));
    answer_bytes_ += request->answer_memory.bytes() - reserved;
    answers_.push_back(std::move(request));
    Continue();
  }

  // Starts what comes next; gRPC's callbacks never run inside a Start or Finish.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (ended_) return;
    const bool dead = broken_ || cancelled();
    if (dead && parked_ != nullptr) {
      parked_.reset();
      --under_way_;
    }
    if (!writing_ && dead) {
      under_way_ -= static_cast<int64_t>(answers_.size());
      answers_.clear();
    } else if (!writing_ && !answers_.empty()) {
      writing_ = true;
      StartWrite(&answers_.front()->answer);
    }
    if (!no_more_reads_ && !draining_ && !dead) return ReadNext();
    if (under_way_ > 0) return;
    if (dead) return EndStream(absl::CancelledError("call: was cancelled"));
    if (no_more_reads_) return EndStream(absl::OkStatus());
    EndStream(absl::UnavailableError("server: is draining and ends idle streams; was one"));
  }

  void ReadNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reading_ || parked_ != nullptr) return;
    if (under_way_ >= services_.options->max_stream_requests) return;
    reading_ = true;
    incoming_ = std::make_unique<Request>();
    StartRead(&incoming_->message);
  }

  void EndStream(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ended_ = true;
    Finish(End(status));
  }

  const Startup& startup_;
  int64_t requests_ = 0;  // of the reading side, which is never entered twice at once
  Mutex mu_;
  std::unique_ptr<Request> incoming_;  // belongs to gRPC while `reading_`
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;  // the first of `answers_`
  bool no_more_reads_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool broken_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int64_t under_way_ ABSL_GUARDED_BY(mu_) = 0;  // taken, and not yet answered and written
  std::deque<std::unique_ptr<Request>> answers_ ABSL_GUARDED_BY(mu_);
  int64_t answer_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // reserved, or in answers not yet taken
  std::unique_ptr<Request> parked_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

grpc::ServerBidiReactor<v1::ForwardRequest, v1::ForwardStreamResponse>*
HeadwiseService::ForwardStream(grpc::CallbackServerContext* context) {
  auto* call = new ForwardStreamCall(services_, startup_, context);
  call->Start();
  return call;
}

}  // namespace headwise
