// SPDX-License-Identifier: Apache-2.0
#include "client/load/record.h"

#include <algorithm>

namespace headwise::client {
namespace {

// A run whose server falls far behind goes on long after its window.
constexpr size_t kMostWindows = 400;

template <typename T>
T& At(std::vector<T>* list, size_t index) {
  if (index >= list->size()) list->resize(index + 1);
  return (*list)[index];
}

}  // namespace

void Part::Add(const Sample& sample) {
  if (!sample.ok()) {
    ++failed;
    return;
  }
  ++ok;
  tokens += sample.tokens;
  latency.Add(sample.done_ns - sample.planned_ns);
}

void Part::Merge(const Part& other) {
  ok += other.ok;
  failed += other.failed;
  tokens += other.tokens;
  latency.Merge(other.latency);
}

void RunRecord::Merge(const RunRecord& other) {
  sent += other.sent;
  ok += other.ok;
  failed += other.failed;
  tokens += other.tokens;
  for (const auto& [reason, count] : other.errors) errors[reason] += count;
  latency.Merge(other.latency);
  all_latency.Merge(other.all_latency);
  service.Merge(other.service);
  send_delay.Merge(other.send_delay);
  queue.Merge(other.queue);
  compute.Merge(other.compute);
  for (const auto parts :
       {&RunRecord::steps, &RunRecord::layers, &RunRecord::servers, &RunRecord::methods}) {
    for (size_t i = 0; i < (other.*parts).size(); ++i)
      At(&(this->*parts), i).Merge((other.*parts)[i]);
  }
}

void RunRecord::Add(const Sample& sample, int64_t window_begin_ns) {
  const int64_t latency_ns = sample.done_ns - sample.planned_ns;
  const auto window_at = [&](int64_t time_ns) -> Window& {
    const auto index =
        static_cast<size_t>(std::max<int64_t>(0, time_ns - window_begin_ns) / window_ns);
    return At(&windows, std::min(index, kMostWindows - 1));
  };
  ++sent;
  send_delay.Add(sample.sent_ns - sample.planned_ns);
  all_latency.Add(latency_ns);
  At(&layers, sample.layer).Add(sample);
  At(&servers, sample.server).Add(sample);
  At(&methods, sample.method).Add(sample);
  if (schedule.has_value() && schedule->pieces().size() > 1) {
    steps.resize(schedule->pieces().size());
    steps[schedule->PieceAt(static_cast<double>(sample.planned_ns - window_begin_ns) * 1e-9)].Add(
        sample);
  }
  if (!sample.ok()) {
    ++failed;
    ++errors[{absl::StatusCodeToString(sample.code), sample.reason}];
    ++window_at(sample.done_ns).failed;
    return;
  }
  ++ok;
  tokens += sample.tokens;
  latency.Add(latency_ns);
  service.Add(sample.done_ns - sample.sent_ns);
  if (sample.queue_us) queue.Add(int64_t{*sample.queue_us} * 1000);
  if (sample.compute_us) compute.Add(int64_t{*sample.compute_us} * 1000);
  window_at(sample.planned_ns).latency.Add(latency_ns);
  Window& done = window_at(sample.done_ns);
  ++done.ok;
  done.tokens += sample.tokens;
}

}  // namespace headwise::client
