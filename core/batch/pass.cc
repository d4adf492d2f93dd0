// SPDX-License-Identifier: Apache-2.0
#include "core/batch/pass.h"

#include <algorithm>
#include <initializer_list>
#include <new>
#include <utility>

#include "core/base/refusal.h"
#include "core/batch/cut_tasks.h"
#include "core/kernel/project_out.h"

namespace headwise {
namespace {

// Of an attention tile beside its multiply-adds, as many of them: about a microsecond.
constexpr int64_t kTileCost = 50'000;

// Pass buffers above this size are given back after the pass.
constexpr int64_t kKeepBytes = 64 << 20;

// Multiply-adds of reduced types count half: they take half the time.
BlockProduct ProductOf(std::initializer_list<const PackedMatrix*> matrices, int64_t rows) {
  BlockProduct product{.rows = rows};
  int64_t macs = 0;
  for (const PackedMatrix* weights : matrices) {
    product.blocks += static_cast<int64_t>(weights->blocks().size());
    macs += weights->depth() * weights->columns() / (weights->type() == TileType::kF32 ? 1 : 2);
  }
  product.block_macs = std::max<int64_t>(1, macs / product.blocks);
  return product;
}

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
  pool_->Rest();
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

void Pass::RunTasks(int64_t count, Task task, Stage stage) {
  constexpr int64_t kReports = 20;
  if (stage.total == 0) stage.total = count;
  const bool watched = stage.name != nullptr &&
                       std::any_of(members_.begin(), members_.end(), [](const auto& member) {
                         return static_cast<bool>(member->item->context.progress);
                       });
  const int64_t step = std::max<int64_t>(1, stage.total / kReports);
  std::atomic<int64_t> ended{stage.before};
  std::atomic<bool> stop{false};
  pool_->Run(count, [&](int64_t i, int worker) {
    if (stop.load(std::memory_order_relaxed)) return;
    if (AllDead()) {
      stop.store(true, std::memory_order_relaxed);
      return;
    }
    WorkerScratch* const scratch = &memory_->workers[static_cast<size_t>(worker)];
    scratch->next_task = pool_->Upcoming(worker);
    try {
      task(i, scratch);
    } catch (const std::bad_alloc&) {
      out_of_memory_.store(true);
      stop.store(true, std::memory_order_relaxed);
      return;
    }
    if (watched) {
      const int64_t done = ended.fetch_add(1, std::memory_order_relaxed) + 1;
      if (done % step == 0) Report(stage, done);
    }
    if (between_tasks_) between_tasks_(worker);
  });
  if (out_of_memory_.load()) throw std::bad_alloc();
}

void Pass::Report(const Stage& stage, int64_t done) const {
  for (const std::unique_ptr<Member>& member : members_) {
    const RequestContext& context = member->item->context;
    if (context.progress) context.progress({stage.name, done, stage.total});
  }
}

void Pass::Project() {
  // x is read, and its numbers are made, once for q, k and v where they all come from it.
  std::vector<BlockProduct> products;
  if (data_.memory == data_.x) {
    products = {ProductOf({&layer().wq(), &layer().wkv()}, data_.query_rows)};
  } else {
    products = {ProductOf({&layer().wq()}, data_.query_rows),
                ProductOf({&layer().wkv()}, data_.key_rows)};
  }
  const std::vector<BlockTask> tasks = CutTasks(products, pool_->threads());
  RunTasks(static_cast<int64_t>(tasks.size()),
           [&](int64_t i, WorkerScratch* scratch) {
             const BlockTask& task = tasks[static_cast<size_t>(i)];
             const int64_t before = task.product == 0 ? 0 : products[0].blocks;
             RunProject(layer(),
                        {task.row, task.rows, before + task.first_block, before + task.last_block},
                        &data_, scratch);
           },
           {"project"});
  NormaliseWidths();
}

void Pass::NormaliseWidths() {
  if (!layer().spec().normed_over_width()) return;
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
  std::vector<int64_t> costs;
  for (size_t s = 0; s < data_.sequences.size(); ++s) {
    const SequencePlan& sequence = data_.sequences[s];
    // A group's heads follow each other: they share k and v.
    for (int64_t head = 0; head < layer().spec().heads; ++head) {
      for (int64_t query = 0; query < sequence.queries; query += kQueryTile) {
        tiles.push_back(
            {static_cast<int64_t>(s), head, query, std::min(kQueryTile, sequence.queries - query)});
        costs.push_back(kTileCost + AttendMacs(layer(), sequence, tiles.back()));
      }
    }
  }
  const std::vector<size_t> task_begin = CutTiles(costs, pool_->threads());
  RunTasks(static_cast<int64_t>(task_begin.size()) - 1,
           [&](int64_t i, WorkerScratch* scratch) {
             const size_t begin = task_begin[static_cast<size_t>(i)];
             const size_t end = task_begin[static_cast<size_t>(i) + 1];
             for (size_t t = begin; t < end; ++t) {
               const bool last = t + 1 == end;
               if (!last || scratch->next_task >= 0) {
                 const size_t next =
                     last ? task_begin[static_cast<size_t>(scratch->next_task)] : t + 1;
                 ExpectTile(layer(), tiles[t], tiles[next], data_, scratch);
               }
               const int64_t owner = data_.sequences[static_cast<size_t>(tiles[t].sequence)].member;
               if (members_[static_cast<size_t>(owner)]->dead.load(std::memory_order_relaxed))
                 continue;
               RunAttend(layer(), tiles[t], &data_, scratch);
             }
           },
           {"attend"});
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
  const std::vector<BlockTask> tasks =
      CutTasks({ProductOf({&layer().wo()}, data_.query_rows)}, pool_->threads());
  RunTasks(static_cast<int64_t>(tasks.size()),
           [&](int64_t i, WorkerScratch* scratch) {
             const BlockTask& task = tasks[static_cast<size_t>(i)];
             RunProjectOut(layer(), data_.z, nullptr, task.row, task.rows, task.first_block,
                           task.last_block, sink, scratch);
           },
           {"project out"});
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
