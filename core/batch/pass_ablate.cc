// SPDX-License-Identifier: Apache-2.0
// What an ablation request adds to a pass: Gram sums, and y with heads replaced.
#include <algorithm>

#include "core/batch/pass.h"
#include "core/kernel/gram.h"
#include "core/kernel/project_out.h"
#include "core/kernel/vector_ops.h"

namespace headwise {
namespace {

// Column blocks of one Gram task: 16 blocks are 1024 columns. Fixed, so that the order of the sums
// does not depend on the number of threads.
constexpr int64_t kGramBlocks = 16;

// A stretch of one segment whose Gram sums one task takes.
struct GramTask {
  size_t segment = 0;
  int64_t row = 0;  // in the pass
  int64_t tokens = 0;
  int64_t first_block = 0;
  int64_t last_block = 0;
};

// z rows [row, row + rows) with the plan's replacements for ablation `a`, a sequence's segments in
// turn. `first_token` is the sequence's position of the first row.
void ReplaceHeads(const AttentionLayer& layer, const AblationPlan& plan, size_t a, int64_t sequence,
                  int64_t first_token, int64_t rows, float* z) {
  const LayerSpec& spec = layer.spec();
  std::vector<float> factors(static_cast<size_t>(spec.heads));
  for (const TokenSegment& segment : plan.segments) {
    if (segment.sequence != sequence) continue;
    const int64_t begin = std::max(segment.begin, first_token);
    const int64_t end = std::min(segment.end, first_token + rows);
    if (begin >= end) continue;
    plan.Factors(a, segment, &factors);
    for (int64_t t = begin; t < end; ++t) {
      float* row = z + (t - first_token) * layer.z_width();
      for (size_t r = 0; r < factors.size(); ++r) {
        float* head = row + layer.z_offsets()[r];
        if (factors[r] == 1.0f) continue;
        if (factors[r] == 0.0f) {
          std::fill_n(head, spec.dv[r], 0.0f);  // selects: NaN and infinity go too
        } else {
          ScaleTo(head, factors[r], spec.dv[r], head);
        }
      }
    }
  }
}

}  // namespace

void Pass::Ablate() {
  for (const std::unique_ptr<Member>& member : members_) {
    if (!member->item->ablation.has_value() || Dead(member.get())) continue;
    RunGrams(member.get());
    RunAblatedOutputs(member.get());
  }
}

void Pass::RunGrams(Member* member) {
  const AblationPlan& plan = member->item->ablation->plan;
  const int64_t blocks = static_cast<int64_t>(layer().wo().blocks().size());
  std::vector<GramTask> tasks;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const TokenSegment& segment = plan.segments[i];
    const SequencePlan& s =
        data_.sequences[static_cast<size_t>(member->first_sequence + segment.sequence)];
    for (int64_t t = segment.begin; t < segment.end; t += kGramTokens) {
      for (int64_t b = 0; b < blocks; b += kGramBlocks) {
        tasks.push_back({i, s.q_row + t, std::min(kGramTokens, segment.end - t), b,
                         std::min(blocks, b + kGramBlocks)});
      }
    }
  }
  const size_t rows = static_cast<size_t>(layer().spec().heads + 1);
  std::vector<std::vector<double>> parts(tasks.size());
  RunTasks(static_cast<int64_t>(tasks.size()), [&](int64_t i, WorkerScratch* scratch) {
    const GramTask& task = tasks[static_cast<size_t>(i)];
    std::vector<double>& sums = parts[static_cast<size_t>(i)];
    sums.assign(rows * rows, 0.0);
    const float* z = data_.z + task.row * layer().z_width();
    RunGram(layer(), z, task.tokens, task.first_block, task.last_block, sums.data(), scratch);
  });
  member->result.grams.assign(plan.segments.size(), {std::vector<double>(rows * rows, 0.0)});
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (parts[i].empty()) continue;  // called off
    std::vector<double>& sums = member->result.grams[tasks[i].segment].sums;
    for (size_t j = 0; j < sums.size(); ++j) sums[j] += parts[i][j];
  }
}

void Pass::RunAblatedOutputs(Member* member) {
  const AblationWork& work = *member->item->ablation;
  const LayerSpec& spec = layer().spec();
  member->result.outputs.reserve(member->result.outputs.size() + work.return_y.size());
  for (const int64_t a : work.return_y) {
    const std::string name = "ablation." + std::to_string(a) + ".y";
    member->ablation_y.push_back(AddOutput(member, name.c_str(),
                                           {member->item->input.query_rows, spec.d_out},
                                           {"token", "feature"}, nullptr));
  }
  std::vector<AttendTile> tiles;  // `head` is not used: rows of one sequence
  for (size_t i = 0; i < member->item->input.queries.size(); ++i) {
    const int64_t s = member->first_sequence + static_cast<int64_t>(i);
    const int64_t queries = data_.sequences[static_cast<size_t>(s)].queries;
    for (int64_t q = 0; q < queries; q += kTileRows) {
      tiles.push_back({s, 0, q, std::min(kTileRows, queries - q)});
    }
  }
  const int64_t count = static_cast<int64_t>(tiles.size());
  RunTasks(
      count * static_cast<int64_t>(work.return_y.size()), [&](int64_t i, WorkerScratch* scratch) {
        const AttendTile& tile = tiles[static_cast<size_t>(i % count)];
        const size_t wanted = static_cast<size_t>(i / count);
        const int64_t row =
            data_.sequences[static_cast<size_t>(tile.sequence)].q_row + tile.first_query;
        float* z = scratch->rows.Reserve<float>(kTileRows * layer().z_width());
        std::copy_n(data_.z + row * layer().z_width(), tile.queries * layer().z_width(), z);
        ReplaceHeads(layer(), work.plan, static_cast<size_t>(work.return_y[wanted]),
                     tile.sequence - member->first_sequence, tile.first_query, tile.queries, z);
        float* y = member->ablation_y[wanted] + (row - member->first_row) * spec.d_out;
        RunProjectOut(
            layer(), z, data_.z + row * layer().z_width(), 0, tile.queries, 0,
            static_cast<int64_t>(layer().wo().blocks().size()),
            [&](int64_t r) { return y + r * spec.d_out; }, scratch);
      });
}

}  // namespace headwise
