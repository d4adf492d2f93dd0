// SPDX-License-Identifier: Apache-2.0
// One trip of a batch through pack, project, attend, project out and unpack.
#ifndef HEADWISE_CORE_BATCH_PASS_H_
#define HEADWISE_CORE_BATCH_PASS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "core/base/clock.h"
#include "core/base/memory.h"
#include "core/base/worker_pool.h"
#include "core/batch/work_item.h"
#include "core/kernel/attend.h"
#include "core/kernel/pass_data.h"
#include "core/kernel/project.h"

namespace headwise {

// Buffers that passes reuse, one set an executor.
struct PassMemory {
  Scratch x, memory, q, kt, v, z, angles, squares;
  std::vector<uint8_t> v_not_finite;
  std::vector<WorkerScratch> workers;

  // Gives back what only an unusually large pass needed.
  void Trim();
};

// Runs the requests of one batch, all of the same layer. Sequences lie one after the other in the
// pass's matrices; nothing is padded but the keys inside a sequence, to whole vectors, so a
// sequence's numbers depend on the sequence alone. Work is cut into tasks of a few milliseconds;
// between tasks, and between the key blocks of one, a request that was called off or has expired
// stops being computed.
// Use once, from one thread.
class Pass {
 public:
  // Called by a worker between two tasks, or between two key blocks of one: at least every 0.1 ms
  // of attention over long sequences. May run another pass, in memory of its own.
  using BetweenTasks = std::function<void(int worker)>;

  Pass(std::vector<std::unique_ptr<WorkItem>> items, WorkerPool* pool, PassMemory* memory,
       const Clock* clock, BetweenTasks between_tasks = {});

  struct Outcome {
    bool complete = false;  // nobody was called off on the way
    absl::Duration took;    // of the stages
  };

  // Runs all stages, then answers every request: RESOURCE_EXHAUSTED where the system had no memory
  // for the pass's buffers.
  Outcome Run();

 private:
  // A request of the pass.
  struct Member {
    std::unique_ptr<WorkItem> item;
    int64_t index = 0;           // in the pass
    int64_t first_row = 0;       // among the query rows
    int64_t first_key_row = 0;   // among the key rows
    int64_t first_sequence = 0;  // among the pass's sequences
    WorkResult result;
    std::atomic<bool> dead{false};
    float* y = nullptr;  // [N, d_out]
    std::vector<float*> ablation_y;
    std::vector<int64_t> donors;  // members of their own that run for this one
    bool is_donor = false;        // nobody waits for its answer
    // What replaces z in each source of the ablation plan, where it is made here: kMean [width],
    // kUniform and kKnockout [N, width], width as ReplacementSource::columns has it.
    std::vector<std::vector<float>> replaced;
  };
  using Task = absl::FunctionRef<void(int64_t task, WorkerScratch* scratch)>;

  // Of which tasks are a part, for requests that want to know how far they are.
  struct Stage {
    const char* name = nullptr;  // null: not worth telling
    int64_t before = 0;          // tasks that have run already
    int64_t total = 0;           // 0: as many as are run now
  };

  // A stretch of one segment whose Gram sums one task takes.
  struct GramTask {
    size_t segment = 0;
    int64_t row = 0;  // in the pass
    int64_t tokens = 0;
    int64_t first_block = 0;
    int64_t last_block = 0;
  };

  const AttentionLayer& layer() const { return *members_.front()->item->layer; }

  void RunStages();
  void Pack();
  void PackMember(Member* member);
  void PlaceSequence(Member* member, size_t index, int64_t* mask_offset);
  void AllocateOutputs(Member* member);
  float* AddOutput(Member* member, const char* name, Shape shape, std::vector<std::string> axes,
                   const std::vector<int64_t>* offsets);
  void ReserveBuffers();
  const float* PackRows(bool memory, Scratch* buffer);
  void PackAngles();

  void Project();
  void NormaliseWidths();
  void Attend();
  void ProjectOut();
  void Ablate();
  void RunGrams(Member* member);
  void RunGramTask(const Member& member, const GramTask& task, double* sums,
                   WorkerScratch* scratch) const;
  void RunFoldProducts(Member* member);
  void RunEffects(Member* member);
  void RunAblatedOutputs(Member* member);
  void ReplaceHeads(const Member& member, size_t a, const AttendTile& tile, float* z) const;

  // pass_means.cc
  void TakeMeans(Member* member, size_t source);
  void TakeSequenceMeans(Member* member);
  // Adds z of one head at the valid ones of query positions [begin, end) of a sequence to `sum`
  // [dv]; returns how many they are.
  int64_t SumValid(const Member& member, const SequencePlan& sequence, int64_t head, int64_t begin,
                   int64_t end, double* sum) const;
  bool Valid(const Member& member, const SequencePlan& sequence, int64_t head, int64_t query) const;

  // pass_replace.cc: what replaces z, and p where attention is taken anew.
  void AddDonors(Member* member);
  void MakeReplacements(Member* member);
  void SpreadEvenly(Member* member, size_t source);
  void KnockOut(Member* member, size_t source);
  void RunAblatedWeights(Member* member);
  void KnockOutWeights(const Member& member, const ReplacementSource& source, int64_t sequence,
                       int64_t head, const std::vector<bool>& replaced, float* p,
                       std::vector<float>* anew, WorkerScratch* scratch) const;
  PassData Alone(const SequencePlan& sequence) const;
  // z' of one head [dv] from a source at a query position of a sequence of the request.
  const float* Replaced(const Member& member, size_t source, int64_t sequence, int64_t query,
                        int64_t head) const;
  void Unpack();
  void UnpackMember(Member* member);
  void UnpackHeads(const Member& member, ProjectionRole role, float* out);
  void UnpackContributions(Member* member, float* out);
  Outcome Answer();

  // Gives each worker's scratch its `between_blocks`, or takes it away.
  void SetBetweenBlocks(bool on);
  // Runs tasks on the pool; skips the rest once no request is left alive. Throws std::bad_alloc, on
  // the calling thread, if one of them did.
  void RunTasks(int64_t count, Task task) { RunTasks(count, task, Stage()); }
  void RunTasks(int64_t count, Task task, Stage stage);
  void Report(const Stage& stage, int64_t done) const;
  bool Dead(Member* member);
  bool AllDead();
  Member* MemberOfRow(int64_t row) const;

  std::vector<std::unique_ptr<Member>> members_;
  WorkerPool* const pool_;
  PassMemory* const memory_;
  const Clock* const clock_;
  const BetweenTasks between_tasks_;
  const absl::Time started_;
  std::atomic<bool> out_of_memory_{false};
  PassData data_;
};

}  // namespace headwise

#endif  // HEADWISE_CORE_BATCH_PASS_H_
