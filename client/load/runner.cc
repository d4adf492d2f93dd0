// SPDX-License-Identifier: Apache-2.0
#include "client/load/runner.h"

#include <algorithm>
#include <utility>

namespace headwise::client {
namespace {

constexpr int64_t kProgressEveryNs = 500'000'000;

}  // namespace

Runner::Runner(Settings settings, Arrivals* arrivals, Lengths* lengths, Transport* transport,
               RunRecord record)
    : settings_(std::move(settings)),
      arrivals_(arrivals),
      lengths_(lengths),
      transport_(transport) {
  result_.record = std::move(record);
}

RunResult Runner::Run() {
  const int64_t begin_ns = transport_->NowNs();
  const CpuSeconds cpu_begin = transport_->CpuSoFar();
  SendDue();
  while (!in_flight_.empty() || NextPlanned().has_value()) {
    if (const auto completion = transport_->Wait(NextWakeNs())) Record(*completion);
    DropOverdue();
    SendDue();
    ReportProgress();
  }
  const double wall_s = static_cast<double>(transport_->NowNs() - begin_ns) * 1e-9;
  if (wall_s > 0) {
    const CpuSeconds cpu = transport_->CpuSoFar();
    result_.busiest_cpu_share = (cpu.busiest_thread - cpu_begin.busiest_thread) / wall_s;
    result_.cores = (cpu.process - cpu_begin.process) / wall_s;
  }
  result_.window_begin_ns = arrivals_->window_begin_ns();
  return std::move(result_);
}

std::optional<int64_t> Runner::NextPlanned() {
  return given_up_ ? std::nullopt : arrivals_->Peek();
}

bool Runner::HasPlace() const {
  return settings_.max_in_flight == 0 || in_flight_.size() < settings_.max_in_flight;
}

void Runner::SendDue() {
  while (HasPlace()) {
    const std::optional<int64_t> planned_ns = NextPlanned();
    if (!planned_ns.has_value() || *planned_ns > transport_->NowNs()) return;
    Send(*planned_ns);
  }
}

void Runner::DropOverdue() {
  if (HasPlace() || transport_->NowNs() < arrivals_->window_end_ns()) return;
  for (; NextPlanned().has_value(); arrivals_->Pop()) ++result_.never_sent;
}

void Runner::Send(int64_t planned_ns) {
  arrivals_->Pop();
  const uint64_t id = progress_.sent++;
  const uint64_t methods = settings_.mix == Mix::kMix ? 2 : 1;
  const bool ablate = settings_.mix == Mix::kAblate || id % methods == 1;
  const Call call = {.id = id,
                     .method = ablate ? Method::kAblate : Method::kForward,
                     .layer = static_cast<size_t>(id / methods) % settings_.layers,
                     .tokens = lengths_->Next()};
  in_flight_[id] = {planned_ns, transport_->NowNs(), call};
  transport_->Start(call);
}

int64_t Runner::NextWakeNs() {
  const int64_t progress_ns = settings_.progress ? next_progress_ns_ : Arrivals::kNever;
  const std::optional<int64_t> planned_ns = NextPlanned();
  if (!planned_ns.has_value()) return progress_ns;
  return std::min(progress_ns, HasPlace() ? *planned_ns : arrivals_->window_end_ns());
}

void Runner::Record(const Completion& completion) {
  const auto found = in_flight_.find(completion.id);
  const InFlight sent = found->second;
  in_flight_.erase(found);
  arrivals_->Completed(completion.done_ns);
  const bool ok = completion.code == absl::StatusCode::kOk;
  ++(ok ? progress_.ok : progress_.failed);
  if (completion.id < settings_.warmup) {
    ++result_.warmup;
    return;
  }
  result_.last_done_ns = std::max(result_.last_done_ns, completion.done_ns);
  const Sample sample = {
      .planned_ns = sent.planned_ns,
      .sent_ns = sent.sent_ns,
      .done_ns = completion.done_ns,
      .code = completion.code,
      .reason = completion.reason,
      .tokens = sent.call.tokens,
      .layer = sent.call.layer,
      .server = static_cast<size_t>(completion.id % settings_.connections) % settings_.servers,
      .method = sent.call.method == Method::kAblate ? size_t{1} : size_t{0},
      .queue_us = completion.queue_us,
      .compute_us = completion.compute_us};
  result_.record.Add(sample, arrivals_->window_begin_ns());
  if (settings_.give_up && settings_.give_up(sample)) given_up_ = true;
}

void Runner::ReportProgress() {
  const int64_t now_ns = transport_->NowNs();
  if (!settings_.progress || now_ns < next_progress_ns_) return;
  progress_.elapsed_s = static_cast<double>(now_ns) * 1e-9;
  settings_.progress(progress_);
  next_progress_ns_ = now_ns + kProgressEveryNs;
}

}  // namespace headwise::client
