// SPDX-License-Identifier: Apache-2.0
#include "core/batch/pass.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/refusal.h"
#include "core/kernel/project_out.h"

namespace headwise {
namespace {

// A task should take about a millisecond, at most five: long enough that handing it out costs
// nothing, short enough that a cancelled request frees the core soon. At 100 GFLOP/s a core that is
// 50 M multiply-adds.
constexpr int64_t kTaskMacs = 50'000'000;

// Pass buffers above this size are given back after the pass.
constexpr int64_t kKeepBytes = 64 << 20;

}  // namespace

void PassMemory::Trim() {
  for (Scratch* buffer : {&x, &memory, &q, &kt, &v, &z, &angles, &squares}) {
    buffer->Trim(kKeepBytes);
  }
}

Pass::Pass(std::vector<std::unique_ptr<WorkItem>> items, WorkerPool* pool, PassMemory* memory,
           const Clock* clock, BetweenTasks between_tasks)
    : pool_(pool),
      memory_(memory),
      clock_(clock),
      between_tasks_(std::move(between_tasks)),
      started_(clock->Now()) {
  for (std::unique_ptr<WorkItem>& item : items) {
    members_.push_back(std::make_unique<Member>());
    members_.back()->index = static_cast<int64_t>(members_.size()) - 1;
    members_.back()->item = std::move(item);
  }
  const size_t asked = members_.size();
  for (size_t i = 0; i < asked; ++i) AddDonors(members_[i].get());
}

void Pass::SetBetweenBlocks(bool on) {
  for (size_t worker = 0; worker < memory_->workers.size(); ++worker) {
    std::function<bool(int64_t)>& between = memory_->workers[worker].between_blocks;
    between = nullptr;
    if (!on) continue;
    between = [this, worker](int64_t member) {
      if (between_tasks_) between_tasks_(static_cast<int>(worker));
      return !Dead(members_[static_cast<size_t>(member)].get());
    };
  }
}

Pass::Outcome Pass::Run() {
  try {
    RunStages();
  } catch (const std::bad_alloc&) {
    out_of_memory_.store(true);
  }
  SetBetweenBlocks(false);
  return Answer();
}

void Pass::RunStages() {
  Pack();
  SetBetweenBlocks(true);
  const int64_t pack_us = absl::ToInt64Microseconds(clock_->Now() - started_);
  for (const auto& member : members_) member->result.pass.pack_us = pack_us;
  Project();
  Attend();
  ProjectOut();
  Ablate();
  Unpack();
}

bool Pass::Dead(Member* member) {
  if (member->dead.load(std::memory_order_relaxed)) return true;
  if (member->item->Alive(clock_->Now()).ok()) return false;
  member->dead.store(true, std::memory_order_relaxed);
  return true;
}

bool Pass::AllDead() {
  return std::all_of(members_.begin(), members_.end(),
                     [this](const std::unique_ptr<Member>& member) { return Dead(member.get()); });
}

Pass::Member* Pass::MemberOfRow(int64_t row) const {
  const auto after = std::upper_bound(
      members_.begin(), members_.end(), row,
      [](int64_t value, const std::unique_ptr<Member>& m) { return value < m->first_row; });
  return std::prev(after)->get();
}

void Pass::RunTasks(int64_t count, Task task) {
  std::atomic<bool> stop{false};
  pool_->Run(count, [&](int64_t i, int worker) {
    if (stop.load(std::memory_order_relaxed)) return;
    if (AllDead()) {
      stop.store(true, std::memory_order_relaxed);
      return;
    }
    try {
      task(i, &memory_->workers[static_cast<size_t>(worker)]);
    } catch (const std::bad_alloc&) {
      out_of_memory_.store(true);
      stop.store(true, std::memory_order_relaxed);
      return;
    }
    if (between_tasks_) between_tasks_(worker);
  });
  if (out_of_memory_.load()) throw std::bad_alloc();
}

// Row blocks of a projection, cut over column blocks too where one would take too long or where
// there are fewer row blocks than workers.
void Pass::AddProjectTasks(bool keys_and_values, std::vector<ProjectTask>* tasks) const {
  const PackedMatrix& weights = keys_and_values ? layer().wkv() : layer().wq();
  const int64_t rows = keys_and_values ? data_.key_rows : data_.query_rows;
  if (rows == 0) return;
  const int64_t blocks = static_cast<int64_t>(weights.blocks().size());
  const int64_t row_blocks = (rows + kTileRows - 1) / kTileRows;
  const int64_t tile_macs =
      std::min(rows, kTileRows) * weights.depth() * (weights.columns() / blocks);
  int64_t blocks_a_task = std::max<int64_t>(1, kTaskMacs / std::max<int64_t>(1, tile_macs));
  if (row_blocks < 2 * pool_->threads()) {
    const int64_t parts = (2 * pool_->threads() + row_blocks - 1) / row_blocks;
    blocks_a_task = std::min(blocks_a_task, std::max<int64_t>(1, (blocks + parts - 1) / parts));
  }
  for (int64_t row = 0; row < rows; row += kTileRows) {
    for (int64_t b = 0; b < blocks; b += blocks_a_task) {
      tasks->push_back({keys_and_values, row, std::min(kTileRows, rows - row), b,
                        std::min(blocks, b + blocks_a_task)});
    }
  }
}

void Pass::Project() {
  std::vector<ProjectTask> tasks;
  AddProjectTasks(/*keys_and_values=*/false, &tasks);
  AddProjectTasks(/*keys_and_values=*/true, &tasks);
  // Tasks on the same rows follow each other, so that x is read from memory once.
  std::stable_sort(tasks.begin(), tasks.end(),
                   [](const ProjectTask& a, const ProjectTask& b) { return a.row < b.row; });
  RunTasks(static_cast<int64_t>(tasks.size()), [&](int64_t i, WorkerScratch* scratch) {
    RunProject(layer(), tasks[static_cast<size_t>(i)], &data_, scratch);
  });
  NormaliseWidths();
}

void Pass::NormaliseWidths() {
  const std::optional<QkNormSpec>& norm = layer().spec().qk_norm;
  if (!norm.has_value() || norm->span != QkNormSpan::kWidth) return;
  for (const bool keys : {false, true}) {
    const int64_t rows = keys ? data_.key_rows : data_.query_rows;
    RunTasks((rows + kTileRows - 1) / kTileRows, [&](int64_t i, WorkerScratch*) {
      const int64_t row = i * kTileRows;
      RunWidthNorm(layer(), keys, row, std::min(kTileRows, rows - row), &data_);
    });
  }
}

void Pass::Attend() {
  std::vector<AttendTile> tiles;
  std::vector<size_t> task_begin = {0};
  int64_t macs = 0;
  for (size_t s = 0; s < data_.sequences.size(); ++s) {
    const SequencePlan& sequence = data_.sequences[s];
    // A group's heads follow each other: they share k and v.
    for (int64_t head = 0; head < layer().spec().heads; ++head) {
      for (int64_t query = 0; query < sequence.queries; query += kQueryTile) {
        tiles.push_back(
            {static_cast<int64_t>(s), head, query, std::min(kQueryTile, sequence.queries - query)});
        macs += AttendMacs(layer(), sequence, tiles.back());
        if (macs < kTaskMacs / 8) continue;
        task_begin.push_back(tiles.size());
        macs = 0;
      }
    }
  }
  if (task_begin.back() != tiles.size()) task_begin.push_back(tiles.size());
  RunTasks(static_cast<int64_t>(task_begin.size()) - 1, [&](int64_t i, WorkerScratch* scratch) {
    for (size_t t = task_begin[static_cast<size_t>(i)]; t < task_begin[static_cast<size_t>(i) + 1];
         ++t) {
      const int64_t owner = data_.sequences[static_cast<size_t>(tiles[t].sequence)].member;
      if (members_[static_cast<size_t>(owner)]->dead.load(std::memory_order_relaxed)) continue;
      RunAttend(layer(), tiles[t], &data_, scratch);
    }
  });
}

void Pass::ProjectOut() {
  const bool wanted = std::any_of(members_.begin(), members_.end(),
                                  [](const auto& member) { return member->y != nullptr; });
  if (!wanted || data_.query_rows == 0) return;
  const int64_t d_out = layer().spec().d_out;
  const auto sink = [&](int64_t row) -> float* {
    const Member& member = *MemberOfRow(row);
    return member.y == nullptr ? nullptr : member.y + (row - member.first_row) * d_out;
  };
  const int64_t blocks = static_cast<int64_t>(layer().wo().blocks().size());
  const int64_t row_blocks = (data_.query_rows + kTileRows - 1) / kTileRows;
  const int64_t tile_macs = std::min(data_.query_rows, kTileRows) * layer().wo().depth() * d_out;
  int64_t parts = (tile_macs + kTaskMacs - 1) / kTaskMacs;
  if (row_blocks < 2 * pool_->threads()) {
    parts = std::max<int64_t>(parts, (2 * pool_->threads() + row_blocks - 1) / row_blocks);
  }
  parts = std::clamp<int64_t>(parts, 1, blocks);
  RunTasks(row_blocks * parts, [&](int64_t i, WorkerScratch* scratch) {
    const int64_t row = i / parts * kTileRows;
    const int64_t part = i % parts;
    RunProjectOut(layer(), data_.z, nullptr, row, std::min(kTileRows, data_.query_rows - row),
                  blocks * part / parts, blocks * (part + 1) / parts, sink, scratch);
  });
}

Pass::Outcome Pass::Answer() {
  const absl::Duration took = clock_->Now() - started_;
  const int64_t compute_us = absl::ToInt64Microseconds(took);
  const int64_t requests =
      std::count_if(members_.begin(), members_.end(),
                    [](const std::unique_ptr<Member>& member) { return !member->is_donor; });
  bool complete = true;
  for (const std::unique_ptr<Member>& member : members_) {
    if (member->is_donor) continue;
    WorkItem& item = *member->item;
    PassInfo& info = member->result.pass;
    info.layer = layer().info().name;
    info.layer_version = layer().info().version;
    info.lengths = item.input.queries;
    info.batch_requests = requests;
    info.batch_tokens = data_.query_rows;
    info.queue_us = std::max<int64_t>(0, absl::ToInt64Microseconds(started_ - item.accepted));
    info.compute_us = compute_us;
    absl::Status alive = item.Alive(clock_->Now());
    if (out_of_memory_.load()) {
      alive.Update(Refuse(Refusal::kRequestBytes,
                          "memory: must be there for the buffers of the pass, retry later; was "
                          "refused by the system"));
    }
    if (!alive.ok()) {
      complete = false;
      item.done(alive);
    } else {
      item.done(std::move(member->result));
    }
  }
  return {complete, took};
}

}  // namespace headwise
