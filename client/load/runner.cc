// SPDX-License-Identifier: Apache-2.0
#include "client/load/runner.h"

#include <algorithm>
#include <utility>

namespace headwise::client {
namespace {

constexpr int64_t kProgressEveryNs = 500'000'000;

}  // namespace

Runner::Runner(Settings settings, Arrivals* arrivals, Lengths* lengths, Transport* transport)
    : settings_(std::move(settings)),
      arrivals_(arrivals),
      lengths_(lengths),
      transport_(transport) {}

RunResult Runner::Run() {
  const int64_t begin_ns = transport_->NowNs();
  const double cpu_begin_s = transport_->BusiestThreadCpuSeconds();
  SendDue();
  while (!in_flight_.empty() || arrivals_->Peek().has_value()) {
    if (const auto completion = transport_->Wait(NextWakeNs())) Record(*completion);
    DropOverdue();
    SendDue();
    ReportProgress();
  }
  const double wall_s = static_cast<double>(transport_->NowNs() - begin_ns) * 1e-9;
  const double cpu_s = transport_->BusiestThreadCpuSeconds() - cpu_begin_s;
  result_.busiest_cpu_share = wall_s > 0 ? cpu_s / wall_s : 0;
  result_.window_begin_ns = arrivals_->window_begin_ns();
  return std::move(result_);
}

bool Runner::HasPlace() const {
  return settings_.max_in_flight == 0 || in_flight_.size() < settings_.max_in_flight;
}

void Runner::SendDue() {
  while (HasPlace()) {
    const std::optional<int64_t> planned_ns = arrivals_->Peek();
    if (!planned_ns.has_value() || *planned_ns > transport_->NowNs()) return;
    Send(*planned_ns);
  }
}

void Runner::DropOverdue() {
  if (HasPlace() || transport_->NowNs() < arrivals_->window_end_ns()) return;
  for (; arrivals_->Peek().has_value(); arrivals_->Pop()) ++result_.never_sent;
}

void Runner::Send(int64_t planned_ns) {
  arrivals_->Pop();
  const uint64_t id = progress_.sent++;
  const bool ablate = settings_.mix == Mix::kAblate || (settings_.mix == Mix::kMix && id % 2 == 1);
  const uint32_t tokens = lengths_->Next();
  in_flight_[id] = {planned_ns, transport_->NowNs(), tokens};
  transport_->Start({id, ablate ? Method::kAblate : Method::kForward, tokens});
}

int64_t Runner::NextWakeNs() {
  const int64_t progress_ns = settings_.progress ? next_progress_ns_ : Arrivals::kNever;
  const std::optional<int64_t> planned_ns = arrivals_->Peek();
  if (!planned_ns.has_value()) return progress_ns;
  return std::min(progress_ns, HasPlace() ? *planned_ns : arrivals_->window_end_ns());
}

void Runner::Record(const Completion& completion) {
  const auto found = in_flight_.find(completion.id);
  const InFlight call = found->second;
  in_flight_.erase(found);
  arrivals_->Completed(completion.done_ns);
  const bool ok = completion.code == absl::StatusCode::kOk;
  ++(ok ? progress_.ok : progress_.failed);
  if (completion.id < settings_.warmup) {
    ++result_.warmup;
    return;
  }
  result_.last_done_ns = std::max(result_.last_done_ns, completion.done_ns);
  result_.samples.push_back({call.planned_ns, call.sent_ns, completion.done_ns, completion.code,
                             call.tokens, completion.queue_us, completion.compute_us});
}

void Runner::ReportProgress() {
  const int64_t now_ns = transport_->NowNs();
  if (!settings_.progress || now_ns < next_progress_ns_) return;
  progress_.elapsed_s = static_cast<double>(now_ns) * 1e-9;
  settings_.progress(progress_);
  next_progress_ns_ = now_ns + kProgressEveryNs;
}

}  // namespace headwise::client
