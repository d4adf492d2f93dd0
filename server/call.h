// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_CALL_H_
#define HEADWISE_SERVER_CALL_H_

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/base/cancel.h"
#include "core/engine.h"
#include "core/request.h"
#include "server/call_tracker.h"
#include "server/layer_loader.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/request_memory.h"

namespace headwise {

// What all handlers share; owned by the server, outlives every call.
struct Services {
  Engine* engine = nullptr;
  LayerLoader* loader = nullptr;
  Metrics* metrics = nullptr;
  CallTracker* calls = nullptr;
  const ServerOptions* options = nullptr;
  std::atomic<int64_t>* upload_bytes = nullptr;  // announced by the uploads under way
  RequestMemory* memory = nullptr;
  bool takes_admin_calls = true;                 // at the addresses that these serve
  const char* service = "headwise.v1.Headwise";  // whose methods they answer; a literal
};

// The part of a call that has nothing to do with its messages: admission, request id, deadline,
// cancellation, status, metrics. A reactor derives from it. Thread-safe where gRPC and the engine
// need it: Cancel, Abort.
class Call : public LiveCall {
 public:
  // `method` is a string literal; `layer` is the metrics label, "" where the method has none.
  Call(const Services& services, grpc::CallbackServerContext* context, const char* method,
       absl::string_view layer);
  ~Call() override;

  // UNAVAILABLE while the server drains, PERMISSION_DENIED for what only other addresses take.
  absl::Status Admit();

  // The key `headwise-request-id`, else `field`, else a made-up one. INVALID_ARGUMENT for what
  // can't be a header. Sent back with the status.
  absl::Status ChooseRequestId(absl::string_view field);
  const std::string& request_id() const { return request_id_; }
  grpc::CallbackServerContext* context() const { return context_; }

  // Counts the request's message as held until the call ends. RESOURCE_EXHAUSTED.
  absl::Status Hold(int64_t message_bytes);
  // The answer is there: how long encoding took, and what of the room that was reserved for it
  // (request_context) it holds until the call ends.
  void SetAnswer(const PassInfo& pass, absl::Duration encode, int64_t answer_bytes);

  // Room for the answer is taken from the budget before the request is queued.
  RequestContext request_context(int32_t priority = 0);
  absl::Time deadline() const { return deadline_; }
  const std::shared_ptr<CancelToken>& cancel_token() const { return cancel_; }
  bool cancelled() const { return cancel_->cancelled(); }

  // From a reactor's OnCancel: what waits for this call in the engine is answered now.
  void Cancel();

  // Called off because the server's grace has run out.
  void Abort() override;
  bool aborted() const { return aborted_.load(); }

  const std::string& client() const { return client_; }
  absl::Time arrived() const { return arrived_; }

  // The one status of the call: counts it, adds the trailing metadata, and says what to Finish
  // with.
  grpc::Status End(const absl::Status& status);

 protected:
  // INVALID_ARGUMENT for what can't be a header.
  static absl::Status CheckRequestId(absl::string_view id);
  // Counts and logs one request of a stream.
  void RecordPart(const CallRecord& part, absl::string_view request_id) const;
  // What a cancelled call is told depends on who cancelled it, which the engine can't know.
  absl::Status Final(const absl::Status& status) const;
  // A line for a call (or a request of its stream) that is slow or, at level debug, for any.
  void Log(absl::string_view layer, absl::string_view request_id, const absl::Status& status,
           const PassInfo* pass, absl::Duration total) const;

  const Services& services_;

 private:
  // When it is worth trying again; of a status that may pass.
  absl::Duration RetryDelayOf(const absl::Status& status) const;

  grpc::CallbackServerContext* const context_;
  const char* const method_;
  const std::string layer_;
  const absl::Time arrived_;
  const absl::Time deadline_;
  const std::shared_ptr<CancelToken> cancel_;
  const std::string client_;
  RequestMemory::Hold message_memory_, answer_memory_;
  bool admitted_ = false;
  std::string request_id_;
  std::optional<PassInfo> pass_;
  absl::Duration encode_;
  std::atomic<bool> aborted_{false};
};

// A unary call. Deletes itself when gRPC is done with it; Reply exactly once.
class UnaryCall final : public grpc::ServerUnaryReactor, public Call {
 public:
  using Call::Call;

  void Reply(const absl::Status& status) { Finish(End(status)); }
  // Gives the request's memory back where the method's messages are FreeingAllocator's: nobody may
  // look at the request any more.
  void FreeRequest() {
    if (auto* messages = context()->GetRpcAllocatorState()) messages->FreeRequest();
  }
  void OnCancel() override { Cancel(); }
  void OnDone() override { delete this; }
};

// A unary call that is answered at once by `answer`, which fills the response in.
grpc::ServerUnaryReactor* AnswerNow(const Services& services, grpc::CallbackServerContext* context,
                                    const char* method, absl::string_view layer,
                                    const std::function<absl::Status()>& answer);

}  // namespace headwise

#endif  // HEADWISE_SERVER_CALL_H_
