// SPDX-License-Identifier: Apache-2.0
#include "server/health_service.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "server/status.h"

namespace headwise {
namespace {

using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

HealthCheckResponse::ServingStatus Encode(Health health) {
  switch (health) {
    case Health::kServing:
      return HealthCheckResponse::SERVING;
    case Health::kNotServing:
      return HealthCheckResponse::NOT_SERVING;
    case Health::kUnknownName:
      return HealthCheckResponse::SERVICE_UNKNOWN;
  }
  return HealthCheckResponse::UNKNOWN;
}

// One Watch. Deletes itself when gRPC is done with it.
class WatchCall final : public grpc::ServerWriteReactor<HealthCheckResponse>,
                        public HealthBoard::Watcher {
 public:
  WatchCall(HealthBoard* board, const std::string& name) : board_(board) {
    board_->Watch(name, this);
  }

  // Keeps the newest state only: a slow reader skips what has passed.
  void Tell(Health health, bool last) override {
    MutexLock lock(&mu_);
    next_ = health;
    ending_ = ending_ || last;
    Continue();
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) {
      next_.reset();
      ending_ = true;
    }
    Continue();
  }

  void OnCancel() override {
    board_->Unwatch(this);
    MutexLock lock(&mu_);
    next_.reset();
    ending_ = true;
    Continue();
  }

  void OnDone() override {
    board_->Unwatch(this);
    delete this;
  }

 private:
  // Starts what comes next; gRPC's callbacks never run inside a Start or Finish.
  void Continue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || finished_) return;
    if (next_.has_value()) {
      message_.set_status(Encode(*next_));
      next_.reset();
      writing_ = true;
      StartWrite(&message_);
    } else if (ending_) {
      finished_ = true;
      Finish(grpc::Status::OK);
    }
  }

  HealthBoard* const board_;
  Mutex mu_;
  HealthCheckResponse message_;  // belongs to gRPC while `writing_`
  std::optional<Health> next_ ABSL_GUARDED_BY(mu_);
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

grpc::ServerUnaryReactor* HealthService::Check(grpc::CallbackServerContext* context,
                                               const HealthCheckRequest* request,
                                               HealthCheckResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const headwise::Health health = board_->Check(request->service());
  if (health == headwise::Health::kUnknownName) {
    reactor->Finish(ToGrpcStatus(absl::NotFoundError(absl::StrCat(
        "service: must be \"\" or layer/NAME of a loaded layer; was ", request->service()))));
  } else {
    response->set_status(Encode(health));
    reactor->Finish(grpc::Status::OK);
  }
  return reactor;
}

grpc::ServerWriteReactor<HealthCheckResponse>* HealthService::Watch(
    grpc::CallbackServerContext*, const HealthCheckRequest* request) {
  return new WatchCall(board_, request->service());
}

}  // namespace headwise
