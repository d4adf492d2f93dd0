// SPDX-License-Identifier: Apache-2.0
// What replaces z where it is no multiple of it: means, donors, attention taken anew for the heads
// that need it.
#include <algorithm>
#include <limits>
#include <numeric>

#include "core/batch/pass.h"

namespace headwise {
namespace {

// The user's mask hides the key from the row.
bool HiddenByUser(const SequencePlan& s, int64_t head, int64_t query, int64_t key) {
  const int64_t at = head * s.mask_head_stride + query * s.mask_row_stride + key;
  if (s.keep != nullptr && s.keep[at] == (s.keep_is_drop ? 1 : 0)) return true;
  return s.additive != nullptr && s.additive[at] == -std::numeric_limits<float>::infinity();
}

bool Masked(const SequencePlan& s) { return s.keep != nullptr || s.additive != nullptr; }

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
      if (Masked(s_) && HiddenByUser(s_, head_, query, at_.end)) continue;
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
    for (int64_t key = 0; key < s.keys && Masked(s); ++key) {
      const size_t at = static_cast<size_t>(i * s.keys + key);
      tile->keep[at] = HiddenByUser(s, head, first + i, key) ? 0 : 1;
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

}  // namespace

void Pass::AddDonors(Member* member) {
  const std::optional<AblationWork>& work = member->item->ablation;
  if (!work.has_value()) return;
  for (const std::shared_ptr<const ValidInput>& input : work->plan.donor_inputs) {
    auto item = std::make_unique<WorkItem>();
    item->layer = member->item->layer;
    item->input = *input;
    item->context = member->item->context;
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

// A row that sees a key and isn't itself hidden by a mask of keys, which marks padding.
bool Pass::Valid(const Member& member, const SequencePlan& sequence, int64_t head,
                 int64_t query) const {
  const KeyRange range = sequence.Visible(query);
  if (range.begin >= range.end) return false;
  if (!Masked(sequence)) return true;
  const ValidInput& input = member.item->input;
  if (!input.has_memory && input.mask_form == MaskForm::kKey && query < sequence.keys &&
      HiddenByUser(sequence, head, query, query)) {
    return false;
  }
  for (int64_t key = range.begin; key < range.end; ++key) {
    if (!HiddenByUser(sequence, head, query, key)) return true;
  }
  return false;
}

// Without a valid token the mean is 0.
void Pass::TakeMeans(Member* member, size_t source) {
  const ReplacementSource& from = member->item->ablation->plan.sources[source];
  std::vector<float>& means = member->replaced[source];
  means.assign(static_cast<size_t>(from.width), 0.0f);
  RunTasks(static_cast<int64_t>(from.heads.size()), [&](int64_t i, WorkerScratch*) {
    const int64_t head = from.heads[static_cast<size_t>(i)];
    const int64_t dv = layer().spec().dv[static_cast<size_t>(head)];
    std::vector<double> sum(static_cast<size_t>(dv), 0.0);
    int64_t count = 0;
    for (size_t q = 0; q < member->item->input.queries.size(); ++q) {
      const SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence) + q];
      if (!from.selection.Touches(static_cast<int64_t>(q), s.queries)) continue;
      for (int64_t t = from.selection.begin; t < std::min(from.selection.end, s.queries); ++t) {
        if (!Valid(*member, s, head, t)) continue;
        const float* z = data_.z + (s.q_row + t) * layer().z_width() +
                         layer().z_offsets()[static_cast<size_t>(head)];
        for (int64_t d = 0; d < dv; ++d) sum[static_cast<size_t>(d)] += static_cast<double>(z[d]);
        ++count;
      }
    }
    float* out = means.data() + from.columns[static_cast<size_t>(head)];
    for (int64_t d = 0; d < dv && count > 0; ++d) {
      out[d] = static_cast<float>(sum[static_cast<size_t>(d)] / static_cast<double>(count));
    }
  });
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
    const int64_t numbers = data_.padded_key_rows * layer().v_width();
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
    for (auto edge = from.edges.begin(); edge != from.edges.end();) {
      const SequencePlan& s =
          data_.sequences[static_cast<size_t>(member->first_sequence + edge->sequence)];
      const int64_t first = edge->query / kQueryTile * kQueryTile;
      const int64_t count = std::min(kQueryTile, s.queries - first);
      auto end = edge;
      while (end != from.edges.end() && end->sequence == edge->sequence &&
             end->query < first + count) {
        ++end;
      }
      KnockedOutTile tile;
      MakeTile(s, head, first, count, edge, end, &tile);
      PassData alone = Alone(tile.sequence);
      alone.z = anew.data();
      RunAttend(layer(), {0, head, 0, count}, &alone, scratch);
      for (; edge != end; ++edge) copy(anew.data(), s.q_row + edge->query);
    }
  });
}

}  // namespace headwise
