// SPDX-License-Identifier: Apache-2.0
// What replaces z where it is no multiple of it: donors, attention taken anew for the heads that
// need it, whose p is returned too.
#include <algorithm>
#include <map>
#include <numeric>

#include "core/batch/pass.h"

namespace headwise {
namespace {

// Mean of the keys' values that each row of one head may see, with its mass: running sums where a
// row sees what the row before saw and more, else summed anew.
class VisibleMeans {
 public:
  VisibleMeans(const SequencePlan& s, int64_t head, const float* v, int64_t dv)
      : s_(s), head_(head), v_(v), dv_(dv), sum_(static_cast<size_t>(dv)) {}

  void Row(int64_t query, float mass, float* out) {
    const KeyRange range = s_.Visible(query);
    const bool same_keys = s_.mask_row_stride == 0;
    if (!same_keys || range.begin != at_.begin || range.end < at_.end) {
      std::fill(sum_.begin(), sum_.end(), 0.0);
      seen_ = 0;
      at_ = {range.begin, range.begin};
    }
    for (; at_.end < range.end; ++at_.end) {
      if (s_.masked() && s_.HiddenByUser(head_, query, at_.end)) continue;
      ++seen_;
      const float* value = v_ + at_.end * dv_;
      for (int64_t d = 0; d < dv_; ++d)
        sum_[static_cast<size_t>(d)] += static_cast<double>(value[d]);
    }
    const double share = seen_ == 0 ? 0.0 : static_cast<double>(mass) / static_cast<double>(seen_);
    for (int64_t d = 0; d < dv_; ++d) {
      // Selects: a row without keys, or a head switched off, is 0 whatever v holds.
      out[d] = share == 0.0 ? 0.0f : static_cast<float>(share * sum_[static_cast<size_t>(d)]);
    }
  }

 private:
  const SequencePlan& s_;
  const int64_t head_;
  const float* v_;  // [S, dv]
  const int64_t dv_;
  std::vector<double> sum_;
  int64_t seen_ = 0;
  KeyRange at_;
};

// Query rows of a tile as a sequence of their own, with a mask that also hides its edges.
struct KnockedOutTile {
  SequencePlan sequence;
  std::vector<int64_t> positions;
  std::vector<uint8_t> keep;
  std::vector<float> additive;
};

// `begin` to `end`: edges of the tile's rows [first, first + rows).
void MakeTile(const SequencePlan& s, int64_t head, int64_t first, int64_t rows,
              std::vector<Edge>::const_iterator begin, std::vector<Edge>::const_iterator end,
              KnockedOutTile* tile) {
  tile->keep.assign(static_cast<size_t>(rows * s.keys), 1);
  if (s.additive != nullptr) tile->additive.resize(tile->keep.size());
  for (int64_t i = 0; i < rows; ++i) {
    tile->positions.push_back(s.positions == nullptr ? first + i : s.positions[first + i]);
    for (int64_t key = 0; key < s.keys && s.masked(); ++key) {
      const size_t at = static_cast<size_t>(i * s.keys + key);
      tile->keep[at] = s.HiddenByUser(head, first + i, key) ? 0 : 1;
      if (s.additive == nullptr) continue;
      tile->additive[at] =
          s.additive[head * s.mask_head_stride + (first + i) * s.mask_row_stride + key];
    }
  }
  for (; begin != end; ++begin) {
    tile->keep[static_cast<size_t>((begin->query - first) * s.keys + begin->key)] = 0;
  }
  tile->sequence = s;
  tile->sequence.queries = rows;
  tile->sequence.q_row += first;
  tile->sequence.shift += first;
  tile->sequence.positions = tile->positions.data();
  tile->sequence.keep = tile->keep.data();
  tile->sequence.additive = s.additive == nullptr ? nullptr : tile->additive.data();
  tile->sequence.keep_is_drop = false;
  tile->sequence.mask_head_stride = 0;
  tile->sequence.mask_row_stride = s.keys;
  tile->sequence.p = tile->sequence.scores = nullptr;
}

using EdgeIterator = std::vector<Edge>::const_iterator;

// Calls `take` with the edges of each tile of rows that loses some; they are ascending.
void ForEachTile(EdgeIterator begin, EdgeIterator end,
                 absl::FunctionRef<void(EdgeIterator, EdgeIterator)> take) {
  while (begin != end) {
    const int64_t past = (begin->query / kQueryTile + 1) * kQueryTile;
    EdgeIterator last = begin;
    while (last != end && last->sequence == begin->sequence && last->query < past) ++last;
    take(begin, last);
    begin = last;
  }
}

// p of one head's `replaced` rows spread evenly over the keys that they may see; `p` [H, T, S]
// holds the plain one, whose sum is what a sink leaves.
void SpreadWeights(const SequencePlan& s, int64_t head, const std::vector<bool>& replaced,
                   float* p) {
  std::vector<int64_t> seen;
  for (int64_t t = 0; t < s.queries; ++t) {
    if (!replaced[static_cast<size_t>(t)]) continue;
    float* row = p + (head * s.queries + t) * s.keys;
    const KeyRange range = s.Visible(t);
    seen.clear();
    double mass = 0.0;
    for (int64_t key = range.begin; key < range.end; ++key) {
      if (s.masked() && s.HiddenByUser(head, t, key)) continue;
      seen.push_back(key);
      mass += static_cast<double>(row[key]);
    }
    for (const int64_t key : seen) {
      row[key] = static_cast<float>(mass / static_cast<double>(seen.size()));
    }
  }
}

}  // namespace

void Pass::AddDonors(Member* member) {
  const std::optional<AblationWork>& work = member->item->ablation;
  if (!work.has_value()) return;
  for (const std::shared_ptr<const ValidInput>& input : work->plan.donor_inputs) {
    auto item = std::make_unique<WorkItem>();
    item->layer = member->item->layer;
    item->input = *input;
    item->context = member->item->context;
    item->context.progress = nullptr;
    members_.push_back(std::make_unique<Member>());
    members_.back()->index = static_cast<int64_t>(members_.size()) - 1;
    members_.back()->item = std::move(item);
    members_.back()->is_donor = true;
    member->donors.push_back(members_.back()->index);
  }
}

void Pass::MakeReplacements(Member* member) {
  const AblationPlan& plan = member->item->ablation->plan;
  member->replaced.resize(plan.sources.size());
  member->result.mean_sums.resize(plan.sources.size());
  for (size_t i = 0; i < plan.sources.size(); ++i) {
    switch (plan.sources[i].kind) {
      case InterventionKind::kMean:
        if (plan.sources[i].given.empty()) TakeMeans(member, i);
        break;
      case InterventionKind::kUniform:
        SpreadEvenly(member, i);
        break;
      case InterventionKind::kKnockout:
        KnockOut(member, i);
        break;
      default:
        break;
    }
  }
}

const float* Pass::Replaced(const Member& member, size_t source, int64_t sequence, int64_t query,
                            int64_t head) const {
  const ReplacementSource& from = member.item->ablation->plan.sources[source];
  const int64_t column = from.columns[static_cast<size_t>(head)];
  const int64_t z_column = layer().z_offsets()[static_cast<size_t>(head)];
  const auto z_of = [&](const Member& other, int64_t of) {
    const SequencePlan& s = data_.sequences[static_cast<size_t>(other.first_sequence + of)];
    return data_.z + (s.q_row + query) * layer().z_width() + z_column;
  };
  if (from.kind == InterventionKind::kResample) {
    return z_of(member, from.partners[static_cast<size_t>(sequence)]);
  }
  if (from.kind == InterventionKind::kDonor) {
    const Member& donor = *members_[static_cast<size_t>(member.donors[from.donor])];
    return z_of(donor, donor.item->input.queries.size() == 1 ? 0 : sequence);
  }
  const std::vector<float>& rows = from.given.empty() ? member.replaced[source] : from.given;
  if (from.kind == InterventionKind::kMean) return rows.data() + column;
  const SequencePlan& s = data_.sequences[static_cast<size_t>(member.first_sequence + sequence)];
  return rows.data() + (s.q_row + query - member.first_row) * from.width + column;
}

// The pass with one sequence only, on the same q, k and v.
PassData Pass::Alone(const SequencePlan& sequence) const {
  PassData alone;
  alone.sequences = {sequence};
  alone.query_rows = data_.query_rows;
  alone.key_rows = data_.key_rows;
  alone.padded_key_rows = data_.padded_key_rows;
  alone.q = data_.q;
  alone.kt = data_.kt;
  alone.v = data_.v;
  alone.z = data_.z;
  alone.v_not_finite = data_.v_not_finite;
  return alone;
}

// z' = gate * mass * mean of the visible v. Where sinks take their share, attention over a v of
// ones gives gate * mass.
void Pass::SpreadEvenly(Member* member, size_t source) {
  const ReplacementSource& from = member->item->ablation->plan.sources[source];
  const LayerSpec& spec = layer().spec();
  std::vector<float>& rows = member->replaced[source];
  rows.assign(static_cast<size_t>(member->item->input.query_rows * from.width), 0.0f);
  std::vector<float> ones_z;
  std::vector<uint32_t> ones;
  std::vector<uint8_t> finite;
  const bool reduced = layer().attend_type() == TileType::kBf16;
  if (spec.sinks) {
    ones_z.resize(static_cast<size_t>(data_.query_rows * layer().z_width()));
    const int64_t numbers = data_.padded_key_rows * layer().value_width();
    ones.assign(static_cast<size_t>(reduced ? (numbers + 1) / 2 : numbers),
                reduced ? 0x3F803F80u : 0x3F800000u);
    finite.assign(static_cast<size_t>(data_.padded_key_rows * spec.kv_heads), 0);
  }
  const int64_t heads = static_cast<int64_t>(from.heads.size());
  const int64_t sequences = static_cast<int64_t>(member->item->input.queries.size());
  RunTasks(heads * sequences, [&](int64_t i, WorkerScratch* scratch) {
    const int64_t head = from.heads[static_cast<size_t>(i % heads)];
    const SequencePlan& s =
        data_.sequences[static_cast<size_t>(member->first_sequence + i / heads)];
    if (!from.selection.Touches(i / heads, s.queries)) return;
    const int64_t group = spec.query_to_kv[static_cast<size_t>(head)];
    const int64_t dv = spec.dv[static_cast<size_t>(head)];
    std::vector<float> v(static_cast<size_t>(s.keys * dv));
    LoadHead(layer(), ProjectionRole::kV, group, s, data_, dv, v.data());
    PassData alone = Alone(s);
    alone.sequences[0].p = alone.sequences[0].scores = nullptr;
    alone.v = ones.data();
    alone.v_not_finite = finite.data();
    alone.z = ones_z.data();
    VisibleMeans means(s, head, v.data(), dv);
    const float gate = spec.gates.empty() ? 1.0f : spec.gates[static_cast<size_t>(head)];
    for (int64_t t = 0; t < s.queries; ++t) {
      float mass = gate;
      if (spec.sinks) {
        if (t % kQueryTile == 0) {
          RunAttend(layer(), {0, head, t, std::min(kQueryTile, s.queries - t)}, &alone, scratch);
        }
        mass = ones_z[static_cast<size_t>((s.q_row + t) * layer().z_width() +
                                          layer().z_offsets()[static_cast<size_t>(head)])];
      }
      means.Row(t, mass,
                rows.data() + (s.q_row - member->first_row + t) * from.width +
                    from.columns[static_cast<size_t>(head)]);
    }
  });
}

// z' is z but for the rows that lose an edge: their tiles are attended anew with the edges hidden.
void Pass::KnockOut(Member* member, size_t source) {
  const ReplacementSource& from = member->item->ablation->plan.sources[source];
  std::vector<float>& rows = member->replaced[source];
  rows.assign(static_cast<size_t>(member->item->input.query_rows * from.width), 0.0f);
  std::vector<float> anew(static_cast<size_t>(data_.query_rows * layer().z_width()));
  RunTasks(static_cast<int64_t>(from.heads.size()), [&](int64_t i, WorkerScratch* scratch) {
    const int64_t head = from.heads[static_cast<size_t>(i)];
    const int64_t dv = layer().spec().dv[static_cast<size_t>(head)];
    const int64_t column = from.columns[static_cast<size_t>(head)];
    const int64_t z_column = layer().z_offsets()[static_cast<size_t>(head)];
    const auto copy = [&](const float* z, int64_t row) {
      std::copy_n(z + row * layer().z_width() + z_column, dv,
                  rows.data() + (row - member->first_row) * from.width + column);
    };
    for (int64_t t = 0; t < member->item->input.query_rows; ++t) {
      copy(data_.z, member->first_row + t);
    }
    ForEachTile(from.edges.begin(), from.edges.end(), [&](EdgeIterator begin, EdgeIterator end) {
      const SequencePlan& s =
          data_.sequences[static_cast<size_t>(member->first_sequence + begin->sequence)];
      const int64_t first = RoundDown(begin->query, kQueryTile);
      const int64_t count = std::min(kQueryTile, s.queries - first);
      KnockedOutTile tile;
      MakeTile(s, head, first, count, begin, end, &tile);
      PassData alone = Alone(tile.sequence);
      alone.z = anew.data();
      RunAttend(layer(), {0, head, 0, count}, &alone, scratch);
      for (; begin != end; ++begin) copy(anew.data(), s.q_row + begin->query);
    });
  });
}

// p of the rows that lose an edge and are `replaced`; `p` [H, T, S] holds the plain one. `anew` is
// room for a z that nobody wants.
void Pass::KnockOutWeights(const Member& member, const ReplacementSource& source, int64_t sequence,
                           int64_t head, const std::vector<bool>& replaced, float* p,
                           std::vector<float>* anew, WorkerScratch* scratch) const {
  const SequencePlan& s = data_.sequences[static_cast<size_t>(member.first_sequence + sequence)];
  const auto begin =
      std::lower_bound(source.edges.begin(), source.edges.end(), Edge{sequence, 0, 0});
  const auto end = std::lower_bound(begin, source.edges.end(), Edge{sequence + 1, 0, 0});
  anew->resize(static_cast<size_t>(layer().z_width() * data_.query_rows));
  ForEachTile(begin, end, [&](EdgeIterator from, EdgeIterator to) {
    const int64_t first = RoundDown(from->query, kQueryTile);
    const int64_t count = std::min(kQueryTile, s.queries - first);
    KnockedOutTile tile;
    MakeTile(s, head, first, count, from, to, &tile);
    // Where the kernel, which knows the tile's rows only, finds those of this head.
    float* rows = p + (head * s.queries + first) * s.keys;
    const std::vector<float> plain(rows, rows + count * s.keys);
    tile.sequence.p = p + (head * (s.queries - count) + first) * s.keys;
    PassData alone = Alone(tile.sequence);
    alone.z = anew->data();
    RunAttend(layer(), {0, head, 0, count}, &alone, scratch);
    std::vector<bool> changed(static_cast<size_t>(count), false);
    for (; from != to; ++from) {
      changed[static_cast<size_t>(from->query - first)] =
          replaced[static_cast<size_t>(from->query)];
    }
    for (int64_t i = 0; i < count; ++i) {
      if (changed[static_cast<size_t>(i)]) continue;
      std::copy_n(plain.begin() + i * s.keys, s.keys, rows + i * s.keys);
    }
  });
}

// p as it was, except where attention is spread evenly or taken anew.
void Pass::RunAblatedWeights(Member* member) {
  const AblationWork& work = *member->item->ablation;
  if (!work.return_p) return;
  const AblationPlan& plan = work.plan;
  const LayerSpec& spec = layer().spec();
  const int64_t sequences = static_cast<int64_t>(member->item->input.queries.size());
  std::vector<float*> places;  // [wanted, B]
  for (const int64_t a : work.return_y) {
    for (int64_t i = 0; i < sequences; ++i) {
      const SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence + i)];
      const std::string name = "ablation." + std::to_string(a) + ".p." + std::to_string(i);
      places.push_back(AddOutput(member, name.c_str(), {spec.heads, s.queries, s.keys},
                                 {"head", "query", "key"}, nullptr));
      std::copy_n(s.p, spec.heads * s.queries * s.keys, places.back());
    }
  }
  RunTasks(static_cast<int64_t>(places.size()), [&](int64_t i, WorkerScratch* scratch) {
    const size_t a = static_cast<size_t>(work.return_y[static_cast<size_t>(i / sequences)]);
    const int64_t sequence = i % sequences;
    const SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence + sequence)];
    float* p = places[static_cast<size_t>(i)];
    std::vector<float> anew;
    // By variant: which rows it replaces.
    std::map<int64_t, std::vector<bool>> rows;
    std::vector<HeadAction> actions(static_cast<size_t>(spec.heads));
    for (const TokenSegment& segment : plan.segments) {
      if (segment.sequence != sequence) continue;
      plan.Actions(a, /*draw=*/0, segment, &actions);
      for (const HeadAction& action : actions) {
        if (action.variant < 0) continue;
        std::vector<bool>& mine = rows[action.variant];
        mine.resize(static_cast<size_t>(s.queries), false);
        std::fill(mine.begin() + segment.begin, mine.begin() + segment.end, true);
      }
    }
    for (const auto& [v, replaced] : rows) {
      const Variant& variant = plan.variants[static_cast<size_t>(v)];
      const ReplacementSource& source = plan.sources[variant.source];
      if (source.kind == InterventionKind::kUniform) {
        SpreadWeights(s, variant.head, replaced, p);
      } else if (source.kind == InterventionKind::kKnockout) {
        KnockOutWeights(*member, source, sequence, variant.head, replaced, p, &anew, scratch);
      }
    }
  });
}

}  // namespace headwise
