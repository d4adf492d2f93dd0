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

// z - z' of a stretch of one segment for every source that acts there, and the Gram matrix's rows
// of them.
class Differences {
 public:
  // `replaced` (source, head, token of the stretch) is z' of a head.
  using ReplacedHead = absl::FunctionRef<const float*(size_t, int64_t, int64_t)>;

  Differences(const AttentionLayer& layer, const AblationPlan& plan, const TokenSegment& segment,
              const float* z, int64_t tokens, ReplacedHead replaced) {
    std::vector<int64_t> matrices(plan.sources.size(), -1);
    const int64_t width = layer.z_width();
    for (size_t i = 0; i < plan.sources.size(); ++i) {
      if (!plan.sources[i].selection.Covers(segment)) continue;
      matrices[i] = static_cast<int64_t>(numbers_.size());
      std::vector<float>& matrix = numbers_.emplace_back(static_cast<size_t>(tokens * width), 0.0f);
      for (const int64_t head : plan.sources[i].heads) {
        const int64_t column = layer.z_offsets()[static_cast<size_t>(head)];
        const int64_t dv = layer.spec().dv[static_cast<size_t>(head)];
        for (int64_t t = 0; t < tokens; ++t) {
          const float* from = z + t * width + column;
          const float* other = replaced(i, head, t);
          float* out = matrix.data() + t * width + column;
          for (int64_t d = 0; d < dv; ++d) out[d] = from[d] - other[d];
        }
      }
    }
    for (const std::vector<float>& matrix : numbers_) {
      deltas_.differences.push_back(matrix.data());
    }
    for (const Variant& variant : plan.variants) {
      deltas_.rows.push_back({matrices[variant.source], variant.head});
    }
  }

  const GramDeltas* deltas() const { return deltas_.rows.empty() ? nullptr : &deltas_; }

 private:
  std::vector<std::vector<float>> numbers_;
  GramDeltas deltas_;
};

// True if an ablation only multiplies z: then int8 keeps z's row scales as they were.
bool OnlyFactors(const AblationPlan& plan, size_t a) {
  for (const ResolvedIntervention& i : plan.ablations[a].interventions) {
    if (!i.sources.empty()) return false;
  }
  return true;
}

}  // namespace

void Pass::Ablate() {
  for (const std::unique_ptr<Member>& member : members_) {
    if (!member->item->ablation.has_value() || Dead(member.get())) continue;
    MakeReplacements(member.get());
    RunGrams(member.get());
    if (Dead(member.get())) continue;
    ChooseGreedily(member->result.grams, layer().spec(), &member->item->ablation->plan);
    RunFoldProducts(member.get());
    RunEffects(member.get());
    TakeSequenceMeans(member.get());
    RunAblatedOutputs(member.get());
    RunAblatedWeights(member.get());
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
  const size_t rows = static_cast<size_t>(plan.gram_rows(layer().spec().heads));
  member->result.grams.assign(plan.segments.size(), {std::vector<double>(rows * rows, 0.0)});
  // The tasks' own sums are added up in order, some at a time: all of a long input's would take
  // more memory than the input.
  const int64_t count = static_cast<int64_t>(tasks.size());
  const int64_t wave = GramTasksAtOnce(static_cast<int64_t>(rows));
  std::vector<std::vector<double>> parts;
  for (int64_t first = 0; first < count; first += wave) {
    const size_t begin = static_cast<size_t>(first);
    parts.assign(static_cast<size_t>(std::min(wave, count - first)), {});
    RunTasks(static_cast<int64_t>(parts.size()),
             [&](int64_t i, WorkerScratch* scratch) {
               std::vector<double>& sums = parts[static_cast<size_t>(i)];
               sums.assign(rows * rows, 0.0);
               RunGramTask(*member, tasks[begin + static_cast<size_t>(i)], sums.data(), scratch);
             },
             {"gram", first, count});
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].empty()) continue;  // called off
      std::vector<double>& sums = member->result.grams[tasks[begin + i].segment].sums;
      for (size_t j = 0; j < sums.size(); ++j) sums[j] += parts[i][j];
    }
  }
}

void Pass::RunGramTask(const Member& member, const GramTask& task, double* sums,
                       WorkerScratch* scratch) const {
  const AblationPlan& plan = member.item->ablation->plan;
  const float* z = data_.z + task.row * layer().z_width();
  const TokenSegment& segment = plan.segments[task.segment];
  const int64_t first =
      task.row -
      data_.sequences[static_cast<size_t>(member.first_sequence + segment.sequence)].q_row;
  const Differences differences(
      layer(), plan, segment, z, task.tokens, [&](size_t source, int64_t head, int64_t t) {
        return Replaced(member, source, segment.sequence, first + t, head);
      });
  RunGram(layer(), z, task.tokens, task.first_block, task.last_block, differences.deltas(), sums,
          scratch);
}

// Products of the folds' sums of contributions: sum_t c_r = (sum_t z_r) W_O^(r). Sums of z are f64,
// so that those of several requests are those of one.
void Pass::RunFoldProducts(Member* member) {
  AblationPlan& plan = member->item->ablation->plan;
  if (plan.sweep != SweepKind::kPrunePlan) return;
  const int64_t width = layer().z_width(), heads = layer().spec().heads;
  const int64_t d_out = layer().spec().d_out, count = plan.folds * heads;
  std::vector<double>& sums = plan.prune_sums.z;
  sums.resize(static_cast<size_t>(plan.folds * width), 0.0);
  for (size_t s = 0; s < plan.fold_of.size(); ++s) {
    if (plan.fold_of[s] < 0) continue;
    const SequencePlan& sequence = data_.sequences[static_cast<size_t>(member->first_sequence) + s];
    double* sum = sums.data() + plan.fold_of[s] * width;
    for (int64_t t = 0; t < sequence.queries; ++t) {
      const float* z = data_.z + (sequence.q_row + t) * width;
      for (int64_t i = 0; i < width; ++i) sum[i] += static_cast<double>(z[i]);
    }
  }
  const std::vector<float> rows(sums.begin(), sums.end());
  std::vector<float>& contributions = plan.fold_contributions;
  contributions.resize(static_cast<size_t>(count * d_out));
  RunTasks(plan.folds, [&](int64_t fold, WorkerScratch* scratch) {
    const TileRows row =
        layer().wo().MakeRows(rows.data() + fold * width, 1, nullptr, &scratch->input);
    std::vector<float> tile(static_cast<size_t>(kTileRows * layer().tile_stride()));
    for (size_t b = 0; b < layer().wo().blocks().size(); ++b) {
      const PackedMatrix::Block& block = layer().wo().blocks()[b];
      for (int64_t r = 0; r < heads; ++r) {
        RunContribution(layer(), r, b, row, tile.data());
        std::copy_n(tile.data(), block.width,
                    contributions.data() + (fold * heads + r) * d_out + block.column);
      }
    }
  });
  plan.fold_products.assign(static_cast<size_t>(count * count), 0.0);
  RunTasks(count, [&](int64_t i, WorkerScratch*) {
    const float* left = contributions.data() + i * d_out;
    for (int64_t j = 0; j < count; ++j) {
      const float* right = contributions.data() + j * d_out;
      double sum = 0.0;
      for (int64_t c = 0; c < d_out; ++c) {
        sum += static_cast<double>(left[c]) * static_cast<double>(right[c]);
      }
      plan.fold_products[static_cast<size_t>(i * count + j)] = sum;
    }
  });
}

// Figures and intervals, an ablation a task: between two the request may be called off.
void Pass::RunEffects(Member* member) {
  const AblationWork& work = *member->item->ablation;
  WorkResult& result = member->result;
  const EffectMaker maker(work.plan, result.grams, layer().spec(),
                          static_cast<int64_t>(member->item->input.queries.size()), work.bootstrap);
  result.y_l2 = maker.y_l2();
  result.y_l2_per_sequence = maker.y_l2_per_sequence();
  const size_t count = work.plan.ablations.size();
  const bool pairs = work.plan.sweep == SweepKind::kPairs;
  result.ablations.resize(count);
  if (pairs) result.interactions.resize(count);
  RunTasks(static_cast<int64_t>(count),
           [&](int64_t i, WorkerScratch*) {
             const size_t a = static_cast<size_t>(i);
             result.ablations[a] = maker.Effect(a);
             if (pairs) result.interactions[a] = maker.PairOf(a);
           },
           {"intervals"});
}

// Rows of one sequence with the first draw of ablation `a`.
void Pass::ReplaceHeads(const Member& member, size_t a, const AttendTile& tile, float* z) const {
  const AblationPlan& plan = member.item->ablation->plan;
  const LayerSpec& spec = layer().spec();
  const int64_t sequence = tile.sequence - member.first_sequence;
  std::vector<HeadAction> actions(static_cast<size_t>(spec.heads));
  for (const TokenSegment& segment : plan.segments) {
    if (segment.sequence != sequence) continue;
    const int64_t begin = std::max(segment.begin, tile.first_query);
    const int64_t end = std::min(segment.end, tile.first_query + tile.queries);
    if (begin >= end) continue;
    plan.Actions(a, /*draw=*/0, segment, &actions);
    for (int64_t t = begin; t < end; ++t) {
      float* row = z + (t - tile.first_query) * layer().z_width();
      for (size_t r = 0; r < actions.size(); ++r) {
        float* head = row + layer().z_offsets()[r];
        if (!actions[r].acts()) continue;
        if (actions[r].variant >= 0) {
          const Variant& variant = plan.variants[static_cast<size_t>(actions[r].variant)];
          std::copy_n(Replaced(member, variant.source, sequence, t, static_cast<int64_t>(r)),
                      spec.dv[r], head);
        } else if (actions[r].factor == 0.0f) {
          std::fill_n(head, spec.dv[r], 0.0f);  // selects: NaN and infinity go too
        } else {
          ScaleTo(head, actions[r].factor, spec.dv[r], head);
        }
      }
    }
  }
}

void Pass::RunAblatedOutputs(Member* member) {
  const AblationWork& work = *member->item->ablation;
  const LayerSpec& spec = layer().spec();
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
        const size_t a = static_cast<size_t>(work.return_y[wanted]);
        ReplaceHeads(*member, a, tile, z);
        float* y = member->ablation_y[wanted] + (row - member->first_row) * spec.d_out;
        RunProjectOut(
            layer(), z, OnlyFactors(work.plan, a) ? data_.z + row * layer().z_width() : nullptr, 0,
            tile.queries, 0, static_cast<int64_t>(layer().wo().blocks().size()),
            [&](int64_t r) { return y + r * spec.d_out; }, scratch);
      });
}

}  // namespace headwise
