// SPDX-License-Identifier: Apache-2.0
// Stage "pack": the requests' sequences placed one after the other, and memory for their results.
#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/resize.h"
#include "core/batch/pass.h"

namespace headwise {
namespace {

struct PositionRange {
  int64_t lowest = 0;
  int64_t highest = 0;  // inclusive
};

PositionRange RangeOf(const int64_t* positions, int64_t count) {
  if (count == 0) return {};
  if (positions == nullptr) return {0, count - 1};
  const auto [lowest, highest] = std::minmax_element(positions, positions + count);
  return {*lowest, *highest};
}

// An input that the kernels can read where it lies.
bool ReadableInPlace(const TensorView& view) {
  return view.dtype == DType::kF32 && reinterpret_cast<uintptr_t>(view.data) % alignof(float) == 0;
}

}  // namespace

void Pass::Pack() {
  memory_->workers.resize(static_cast<size_t>(pool_->threads()));
  for (const std::unique_ptr<Member>& member : members_) PackMember(member.get());
  ReserveBuffers();
  PackAngles();
  data_.x = PackRows(/*memory=*/false, &memory_->x);
  data_.memory = members_.front()->item->input.has_memory
                     ? PackRows(/*memory=*/true, &memory_->memory)
                     : data_.x;
}

void Pass::PackMember(Member* member) {
  const ValidInput& input = member->item->input;
  member->first_row = data_.query_rows;
  member->first_key_row = data_.key_rows;
  member->first_sequence = static_cast<int64_t>(data_.sequences.size());
  int64_t mask_offset = 0;
  for (size_t i = 0; i < input.queries.size(); ++i) PlaceSequence(member, i, &mask_offset);
  AllocateOutputs(member);
}

void Pass::PlaceSequence(Member* member, size_t index, int64_t* mask_offset) {
  const ValidInput& input = member->item->input;
  const int64_t heads = layer().spec().heads;
  SequencePlan s;
  s.member = member->index;
  s.queries = input.queries[index];
  s.keys = input.keys[index];
  s.q_row = data_.query_rows;
  s.kv_row = data_.key_rows;
  s.key_slot = data_.padded_key_rows;
  s.causal = input.causal;
  s.shift = input.causal && input.bottom_right ? s.keys - s.queries : 0;
  s.window = input.window;
  const int64_t own_query = s.q_row - member->first_row;
  if (!input.positions.empty()) s.positions = input.positions.data() + own_query;
  const int64_t own_key = s.kv_row - member->first_key_row;
  if (!input.key_positions.empty()) s.key_positions = input.key_positions.data() + own_key;

  if (input.keep != nullptr) s.keep = input.keep + *mask_offset;
  if (input.additive != nullptr) s.additive = input.additive + *mask_offset;
  s.keep_is_drop = input.keep_is_drop;
  const int64_t pairs = s.queries * s.keys;
  switch (input.mask_form) {
    case MaskForm::kByCount:
      break;
    case MaskForm::kKey:
      *mask_offset += s.keys;
      break;
    case MaskForm::kPair:
      s.mask_row_stride = s.keys;
      *mask_offset += pairs;
      break;
    case MaskForm::kHead:
      s.mask_row_stride = s.keys;
      s.mask_head_stride = pairs;
      *mask_offset += heads * pairs;
      break;
  }
  data_.query_rows += s.queries;
  data_.key_rows += s.keys;
  data_.padded_key_rows += s.padded_keys();
  data_.sequences.push_back(s);
}

float* Pass::AddOutput(Member* member, const char* name, Shape shape, std::vector<std::string> axes,
                       const std::vector<int64_t>* offsets) {
  NamedOutput output{.name = name,
                     .dtype = DType::kF32,
                     .shape = std::move(shape),
                     .axes = std::move(axes),
                     .head_ids = {},
                     .offsets = {},
                     .data = {}};
  ResizeForOverwrite(&output.data, static_cast<size_t>(*NumElements(output.shape)) * sizeof(float));
  const bool has_heads =
      std::find(output.axes.begin(), output.axes.end(), "head") != output.axes.end();
  if (has_heads || offsets != nullptr) output.head_ids = layer().spec().head_ids;
  if (offsets != nullptr) output.offsets = *offsets;
  member->result.outputs.push_back(std::move(output));
  return member->result.outputs.back().floats();
}

// Order of the answer: y, z, q, k, v, p.*, scores.*, contributions. What the kernels write straight
// away (y, p, scores) is noted here; the rest is filled in when the pass is unpacked.
void Pass::AllocateOutputs(Member* member) {
  const LayerSpec& spec = layer().spec();
  const WorkItem& item = *member->item;
  const ValidInput& input = item.input;
  // Room for all now: a later push_back must not move a short string that a kernel writes to.
  size_t ablated = 0;
  if (item.ablation.has_value()) {
    ablated =
        item.ablation->return_y.size() * (1 + (item.ablation->return_p ? input.queries.size() : 0));
  }
  member->result.outputs.reserve(8 + 2 * input.queries.size() + ablated);
  const int64_t n = input.query_rows;
  const int64_t m = input.key_rows;
  const bool equal = spec.equal_widths();
  const auto add_heads = [&](const char* name, int64_t rows, int64_t heads, int64_t width,
                             int64_t total, const std::vector<int64_t>& offsets) {
    if (equal) {
      AddOutput(member, name, {rows, heads, width}, {"token", "head", "feature"}, nullptr);
    } else {
      AddOutput(member, name, {rows, total}, {"token", "feature"}, &offsets);
    }
    // k and v have key/value heads, which are numbered 0…G-1.
    if (name[0] == 'k' || name[0] == 'v') {
      std::vector<int64_t> groups(static_cast<size_t>(heads));
      for (int64_t g = 0; g < heads; ++g) groups[static_cast<size_t>(g)] = g;
      member->result.outputs.back().head_ids = std::move(groups);
    }
  };
  if (item.outputs & kOutputY)
    member->y = AddOutput(member, "y", {n, spec.d_out}, {"token", "feature"}, nullptr);
  if (item.outputs & kOutputZ) {
    add_heads("z", n, spec.heads, spec.dv[0], layer().z_width(), layer().z_offsets());
  }
  if (item.outputs & kOutputQ) {
    add_heads("q", n, spec.heads, spec.dk[0], layer().q_width(), layer().q_offsets());
  }
  if (item.outputs & kOutputK) {
    add_heads("k", m, spec.kv_heads, layer().kv_dk(0), layer().k_width(), layer().k_offsets());
  }
  if (item.outputs & kOutputV) {
    add_heads("v", m, spec.kv_heads, layer().kv_dv(0), layer().v_width(), layer().v_offsets());
  }
  for (const uint32_t bit : {kOutputP, kOutputScores}) {
    if ((item.outputs & bit) == 0) continue;
    for (size_t i = 0; i < input.queries.size(); ++i) {
      const std::string name = (bit == kOutputP ? "p." : "scores.") + std::to_string(i);
      float* out = AddOutput(member, name.c_str(), {spec.heads, input.queries[i], input.keys[i]},
                             {"head", "query", "key"}, nullptr);
      SequencePlan& s = data_.sequences[static_cast<size_t>(member->first_sequence) + i];
      (bit == kOutputP ? s.p : s.scores) = out;
    }
  }
  if (item.outputs & kOutputContributions) {
    AddOutput(member, "contributions", {n, spec.heads, spec.d_out}, {"token", "head", "feature"},
              nullptr);
  }
}

void Pass::ReserveBuffers() {
  const LayerSpec& spec = layer().spec();
  const int64_t bytes = ElementBytes(layer().attend_type());
  // The last tile of a head reads up to a tile of rows beyond its own (see AttendKernels).
  const int64_t q_numbers = data_.query_rows * layer().q_width() + kQueryTile * layer().max_dk();
  data_.q = memory_->q.Reserve<char>(q_numbers * bytes);
  data_.kt = memory_->kt.Reserve<char>(data_.padded_key_rows * layer().kt_width() * bytes);
  data_.v = memory_->v.Reserve<char>(data_.padded_key_rows * layer().value_width() * bytes);
  data_.z = memory_->z.Reserve<float>(data_.query_rows * layer().z_width());
  if (spec.normed_over_width()) {
    const int64_t q_sums = data_.query_rows * layer().square_sums(/*keys=*/false);
    const int64_t k_sums = data_.key_rows * layer().square_sums(/*keys=*/true);
    data_.q_squares = memory_->squares.Reserve<float>(q_sums + k_sums);
    data_.k_squares = data_.q_squares + q_sums;
  }
  memory_->v_not_finite.resize(static_cast<size_t>(data_.padded_key_rows * spec.kv_heads));
  data_.v_not_finite = memory_->v_not_finite.data();
}

// Angles of RoPE for sequences whose positions or length the layer's table doesn't hold: one row a
// token, for all heads.
void Pass::PackAngles() {
  const RopeTable* rope = layer().rope();
  if (rope == nullptr) return;
  struct Stretch {
    const int64_t* positions;
    int64_t rows;
    int64_t length;  // of the sequence, as RopeTable::Frequencies takes it
    const float** place;
    const float** same_place = nullptr;  // of the keys, where they are at the queries' positions
    int64_t at = 0;
  };
  std::vector<Stretch> stretches;
  int64_t total = 0;
  for (SequencePlan& s : data_.sequences) {
    const PositionRange queries = RangeOf(s.positions, s.queries);
    const PositionRange keys = RangeOf(s.key_positions, s.keys);
    const int64_t length = std::max(queries.highest, keys.highest) + 1;
    const bool same = s.positions == s.key_positions && s.queries == s.keys;
    if (!rope->Covers(queries.lowest, queries.highest, length)) {
      stretches.push_back(
          {s.positions, s.queries, length, &s.angles, same ? &s.key_angles : nullptr, total});
      total += s.queries;
    }
    if (!rope->Covers(keys.lowest, keys.highest, length) && !same) {
      stretches.push_back({s.key_positions, s.keys, length, &s.key_angles, nullptr, total});
      total += s.keys;
    }
  }
  if (stretches.empty()) return;
  float* angles = memory_->angles.Reserve<float>(total * rope->row_floats());
  for (const Stretch& stretch : stretches) {
    *stretch.place = angles + stretch.at * rope->row_floats();
    if (stretch.same_place != nullptr) *stretch.same_place = *stretch.place;
  }
  RunTasks(static_cast<int64_t>(stretches.size()), [&](int64_t i, WorkerScratch*) {
    const Stretch& stretch = stretches[static_cast<size_t>(i)];
    const RopeFrequencies frequencies = rope->Frequencies(stretch.length);
    for (int64_t t = 0; t < stretch.rows; ++t) {
      rope->Compute(frequencies, stretch.positions == nullptr ? t : stretch.positions[t],
                    angles + (stretch.at + t) * rope->row_floats());
    }
  });
}

// All members' x (or memory) as one f32 matrix: in place where one request came alone in f32.
const float* Pass::PackRows(bool memory, Scratch* buffer) {
  const auto view_of = [memory](const Member& member) -> const TensorView& {
    return memory ? member.item->input.memory : member.item->input.x;
  };
  if (members_.size() == 1 && ReadableInPlace(view_of(*members_[0]))) {
    return static_cast<const float*>(view_of(*members_[0]).data);
  }
  const int64_t width = memory ? layer().spec().d_memory : layer().spec().d_model;
  float* out = buffer->Reserve<float>((memory ? data_.key_rows : data_.query_rows) * width);
  std::vector<float*> places;
  float* place = out;
  for (const std::unique_ptr<Member>& member : members_) {
    places.push_back(place);
    place += view_of(*member).elements();
  }
  RunTasks(static_cast<int64_t>(members_.size()), [&](int64_t i, WorkerScratch*) {
    const TensorView& view = view_of(*members_[static_cast<size_t>(i)]);
    // The dtype was checked at the door, so this can't fail.
    ConvertToFloat(view, "x", places[static_cast<size_t>(i)]).IgnoreError();
  });
  return out;
}

}  // namespace headwise
