// SPDX-License-Identifier: Apache-2.0
#include "client/load/grpc_transport.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "client/load/connections.h"
#include "client/load/payload.h"
#include "google/rpc/status.pb.h"

namespace headwise::client {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kForwardMethod[] = "/headwise.v1.Headwise/Forward";
constexpr char kAblateMethod[] = "/headwise.v1.Headwise/Ablate";

double SecondsOf(clockid_t clock) {
  timespec time;
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::optional<uint32_t> TrailingNumber(const grpc::ClientContext& context, const char* key) {
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto found = metadata.find(key);
  uint32_t number = 0;
  if (found == metadata.end() ||
      !absl::SimpleAtoi(absl::string_view(found->second.data(), found->second.size()), &number)) {
    return std::nullopt;
  }
  return number;
}

// The reason of the google.rpc.ErrorInfo that came with a failure, or empty.
std::string ReasonOf(const grpc::Status& status) {
  google::rpc::Status details;
  if (status.ok() || !details.ParseFromString(status.error_details())) return "";
  google::rpc::ErrorInfo info;
  for (const google::protobuf::Any& detail : details.details()) {
    if (detail.UnpackTo(&info)) return info.reason();
  }
  return "";
}

// A call in flight; its address is the tag of its events.
class PendingCall {
 public:
  explicit PendingCall(uint64_t id) : id_(id) {}
  virtual ~PendingCall() = default;
  // True once the call has ended.
  virtual bool OnEvent(bool ok) = 0;

  grpc::ClientContext* context() { return &context_; }
  Completion ToCompletion(int64_t done_ns) const {
    return {.id = id_,
            .done_ns = done_ns,
            .code = static_cast<absl::StatusCode>(status_.error_code()),
            .reason = ReasonOf(status_),
            .queue_us = TrailingNumber(context_, "headwise-queue-us"),
            .compute_us = TrailingNumber(context_, "headwise-compute-us")};
  }

 protected:
  const uint64_t id_;
  grpc::ClientContext context_;
  grpc::Status status_;
};

class UnaryCall : public PendingCall {
 public:
  UnaryCall(uint64_t id, const GrpcTransport::Settings& settings, grpc::GenericStub* stub,
            const grpc::ByteBuffer& request, grpc::CompletionQueue* queue)
      : PendingCall(id) {
    PrepareContext(settings.timeout, settings.client_id, settings.security.token, &context_);
    reader_ = stub->PrepareUnaryCall(&context_, kForwardMethod, request, queue);
    reader_->StartCall();
    reader_->Finish(&response_, &status_, this);
  }
  bool OnEvent(bool) override { return true; }

 private:
  grpc::ByteBuffer response_;
  std::unique_ptr<grpc::ClientAsyncResponseReader<grpc::ByteBuffer>> reader_;
};

// Start, write the request, read until the stream ends, finish: one event each.
class StreamCall : public PendingCall {
 public:
  StreamCall(uint64_t id, const GrpcTransport::Settings& settings, grpc::GenericStub* stub,
             grpc::ByteBuffer request, grpc::CompletionQueue* queue)
      : PendingCall(id), request_(std::move(request)) {
    PrepareContext(settings.timeout, settings.client_id, settings.security.token, &context_);
    stream_ = stub->PrepareCall(&context_, kAblateMethod, queue);
    stream_->StartCall(this);
  }

  bool OnEvent(bool ok) override {
    if (state_ == State::kFinishing) return true;
    if (!ok) {  // nothing more can be sent or read; the status says why
      state_ = State::kFinishing;
      stream_->Finish(&status_, this);
    } else if (state_ == State::kStarting) {
      state_ = State::kWriting;
      stream_->WriteLast(request_, grpc::WriteOptions(), this);
    } else {
      state_ = State::kReading;
      stream_->Read(&response_, this);
    }
    return false;
  }

 private:
  enum class State { kStarting, kWriting, kReading, kFinishing };
  State state_ = State::kStarting;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

// Hands ended calls from the receiving thread to the using one. Self-locking. (std::mutex itself:
// of core the client knows only the format leaf, and so not the annotated wrapper.)
class CompletionBox {
 public:
  void Put(const Completion& completion) {
    {
      const std::lock_guard<std::mutex> lock(mu_);
      done_.push_back(completion);
    }
    arrived_.notify_one();
  }

  // The oldest one, or nullopt once it is `until`.
  std::optional<Completion> Take(SteadyClock::time_point until) {
    std::unique_lock<std::mutex> lock(mu_);
    if (!arrived_.wait_until(lock, until, [this] { return !done_.empty(); })) return std::nullopt;
    const Completion completion = done_.front();
    done_.pop_front();
    return completion;
  }

 private:
  std::mutex mu_;
  std::condition_variable arrived_;
  std::deque<Completion> done_;
};

class GrpcTransportImpl : public GrpcTransport {
 public:
  explicit GrpcTransportImpl(const Settings& settings) : settings_(settings) {
    for (const Settings::Layer& layer : settings_.layers) {
      payloads_.push_back(std::make_unique<Payload>(layer.name, layer.d_model, settings_.max_tokens,
                                                    settings_.seed, settings_.priority));
    }
    for (uint32_t i = 0; i < settings_.connections; ++i) {
      const std::string& target = settings_.targets[i % settings_.targets.size()];
      channels_.push_back(MakeChannel(target, /*own_connection=*/true, settings_.security));
      stubs_.push_back(std::make_unique<grpc::GenericStub>(channels_.back()));
    }
    receiver_ = std::thread([this] { Receive(); });
  }

  ~GrpcTransportImpl() override {
    queue_.Shutdown();
    receiver_.join();
  }

  absl::Status WaitForConnections() {
    for (const auto& channel : channels_) channel->GetState(/*try_to_connect=*/true);
    const auto deadline =
        std::chrono::system_clock::now() + absl::ToChronoMicroseconds(settings_.timeout);
    for (size_t i = 0; i < channels_.size(); ++i) {
      if (channels_[i]->WaitForConnected(deadline)) continue;
      return absl::UnavailableError(
          absl::StrCat("server: must answer at ", settings_.targets[i % settings_.targets.size()],
                       "; was silent for ", absl::FormatDuration(settings_.timeout)));
    }
    return absl::OkStatus();
  }

  int MeasureConnections() const override { return CountConnections(settings_.targets); }

  int64_t NowNs() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(SteadyClock::now() - begin_)
        .count();
  }

  void Start(const Call& call) override {
    grpc::GenericStub* stub = stubs_[call.id % stubs_.size()].get();
    grpc::ByteBuffer request = payloads_[call.layer]->Make(call.method, call.tokens);
    if (call.method == Method::kForward) {
      new UnaryCall(call.id, settings_, stub, request, &queue_);
    } else {
      new StreamCall(call.id, settings_, stub, std::move(request), &queue_);
    }
  }

  std::optional<Completion> Wait(int64_t until_ns) override {
    // A day is for ever here; a wait until the largest time point would overflow.
    constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000;
    return ended_.Take(begin_ + std::chrono::nanoseconds(std::min(until_ns, NowNs() + kDayNs)));
  }

  CpuSeconds CpuSoFar() override {
    clockid_t receiver_clock;
    const bool known = pthread_getcpuclockid(receiver_.native_handle(), &receiver_clock) == 0;
    return {.busiest_thread =
                std::max(SecondsOf(CLOCK_THREAD_CPUTIME_ID), known ? SecondsOf(receiver_clock) : 0),
            .process = SecondsOf(CLOCK_PROCESS_CPUTIME_ID)};
  }

 private:
  void Receive() {
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) {
      const int64_t now_ns = NowNs();
      auto* call = static_cast<PendingCall*>(tag);
      if (!call->OnEvent(ok)) continue;
      const std::unique_ptr<PendingCall> ended(call);
      ended_.Put(ended->ToCompletion(now_ns));
    }
  }

  const Settings settings_;
  const SteadyClock::time_point begin_ = SteadyClock::now();
  std::vector<std::unique_ptr<const Payload>> payloads_;  // by layer
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;
  grpc::CompletionQueue queue_;
  CompletionBox ended_;
  std::thread receiver_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcTransport>> GrpcTransport::Open(const Settings& settings) {
  for (const std::string& target : settings.targets) {
    const absl::Status secure = CheckSecurity(target, settings.security);
    if (!secure.ok()) return secure;
  }
  auto transport = std::make_unique<GrpcTransportImpl>(settings);
  const absl::Status connected = transport->WaitForConnections();
  if (!connected.ok()) return connected;
  return transport;
}

}  // namespace headwise::client
