// SPDX-License-Identifier: Apache-2.0
// Masks, causal order, windows and padding.
#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "core/audit/mistakes.h"

namespace headwise {
namespace {

constexpr int64_t kNever = int64_t{1} << 40;

bool HasUserMask(const AuditCase& c) { return c.input->mask_kind != MaskKind::kUnspecified; }

bool Masked(const AuditCase& c) {
  return c.plan.reach->causal || c.plan.reach->window.has_value() || HasUserMask(c);
}

bool SetMask(MaskWay way, int64_t form, AuditCase* c) {
  if (form > 0 || !Masked(*c)) return false;
  c->plan.mask = way;
  return true;
}

std::shared_ptr<ReferenceInput> Edit(AuditCase* c) {
  auto input = std::make_shared<ReferenceInput>(*c->input);
  c->input = input;
  return input;
}

// Form 0: all of the mask; form 1: the user's only, where there is other mask besides.
bool Invert(int64_t form, AuditCase* c) {
  if (form == 0) return SetMask(MaskWay::kInverted, 0, c);
  const bool other = c->plan.reach->causal || c->plan.reach->window.has_value();
  if (form > 1 || !HasUserMask(*c) || !other) return false;
  const auto input = Edit(c);
  if (input->mask_kind == MaskKind::kAdditive) {
    for (double& value : input->mask) {
      value = value == -std::numeric_limits<double>::infinity() ? 1.0 : 0.0;
    }
    input->mask_kind = MaskKind::kKeep;
    return true;
  }
  input->mask_kind = input->mask_kind == MaskKind::kKeep ? MaskKind::kDrop : MaskKind::kKeep;
  return true;
}

bool Shift(int64_t by, int64_t form, AuditCase* c) {
  if (form > 0 || !c->plan.reach->causal) return false;
  c->plan.reach->shift = by;
  return true;
}

// All keys, or all that the window's far end leaves.
bool CausalMissing(int64_t form, AuditCase* c) {
  Reach& reach = *c->plan.reach;
  if (!reach.causal || form > (reach.window.has_value() ? 1 : 0)) return false;
  if (form == 1) {
    reach.shift = kNever;
    return true;
  }
  reach.causal = false;
  reach.window.reset();
  return true;
}

bool SameLengths(const AuditCase& c) { return c.input->lengths == c.input->memory_lengths; }

bool CausalAdded(int64_t form, AuditCase* c) {
  Reach& reach = *c->plan.reach;
  if (reach.causal || form > (SameLengths(*c) ? 0 : 1)) return false;
  reach.causal = true;
  reach.bottom_right = form == 1;
  if (reach.window.has_value()) ++*reach.window;  // counts the own token now
  return true;
}

bool CausalAlignment(int64_t form, AuditCase* c) {
  Reach& reach = *c->plan.reach;
  if (form > 0 || !reach.causal || SameLengths(*c)) return false;
  reach.bottom_right = !reach.bottom_right;
  return true;
}

// One sequence's entries of a user mask with `pad` more keys of `fill`; `only`: nothing else.
void PadRows(const double* from, int64_t rows, int64_t keys, int64_t pad, double fill, bool only,
             double hide, std::vector<double>* to) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t key = 0; key < keys; ++key) {
      to->push_back(only ? hide : from == nullptr ? fill : from[row * keys + key]);
    }
    for (int64_t key = 0; key < pad; ++key) to->push_back(fill);
  }
}

// Sequences are filled up with keys of zeros to the longest one's length.
bool Pad(bool only, int64_t form, AuditCase* c) {
  const std::shared_ptr<const ReferenceInput> held = c->input;  // Edit lets go of it
  const ReferenceInput& own = *held;
  if (form > 0 || c->plan.reach->causal || own.memory_lengths.size() < 2) return false;
  const int64_t longest = *std::max_element(own.memory_lengths.begin(), own.memory_lengths.end());
  const int64_t shortest = *std::min_element(own.memory_lengths.begin(), own.memory_lengths.end());
  if (longest == shortest) return false;
  const auto input = Edit(c);
  input->memory.clear();
  input->memory_positions.clear();
  input->mask.clear();
  const bool keep = own.mask_kind == MaskKind::kKeep || own.mask_kind == MaskKind::kUnspecified;
  const double fill = keep ? 1.0 : 0.0;
  const double hide =
      own.mask_kind == MaskKind::kAdditive ? -std::numeric_limits<double>::infinity() : 1.0 - fill;
  const bool masked = own.mask_kind != MaskKind::kUnspecified;
  if (!masked) input->mask_kind = MaskKind::kKeep;
  if (!masked) input->mask_form = MaskForm::kKey;
  const int64_t width = c->spec.d_memory;
  int64_t key_begin = 0, mask_at = 0;
  for (size_t b = 0; b < own.lengths.size(); ++b) {
    const int64_t keys = own.memory_lengths[b], pad = longest - keys;
    input->memory.insert(input->memory.end(), own.memory.begin() + key_begin * width,
                         own.memory.begin() + (key_begin + keys) * width);
    input->memory.insert(input->memory.end(), static_cast<size_t>(pad * width), 0.0);
    const auto positions = own.memory_positions.begin() + key_begin;
    input->memory_positions.insert(input->memory_positions.end(), positions, positions + keys);
    const int64_t last = keys > 0 ? positions[keys - 1] : -1;
    for (int64_t i = 1; i <= pad; ++i) input->memory_positions.push_back(last + i);
    int64_t rows = 1;
    if (input->mask_form == MaskForm::kPair) rows = own.lengths[b];
    if (input->mask_form == MaskForm::kHead) rows = own.lengths[b] * c->spec.heads;
    PadRows(masked ? own.mask.data() + mask_at : nullptr, rows, keys, pad, fill, only, hide,
            &input->mask);
    input->memory_lengths[b] = longest;
    key_begin += keys;
    mask_at += rows * keys;
  }
  c->projection_key += "pad;";
  return true;
}

constexpr absl::string_view kBefore = "hide keys by -inf in the scores, before the softmax";
constexpr absl::string_view kOwnToken = "let query i see keys 0 to i, its own included";
constexpr Mistake kMistakes[] = {
    {"mask_inverted", "the mask's polarity is inverted: a query sees what it should not",
     "check which value of the mask means that a key may be seen", kChangesMask, Invert},
    {"mask_after_softmax",
     "the mask is applied after the softmax: hidden weights become 0, rows don't sum to 1", kBefore,
     kChangesMask,
     [](int64_t form, AuditCase* c) { return SetMask(MaskWay::kAfterSoftmax, form, c); }},
    {"mask_added_after", "the additive mask (-1e9) is added after the softmax", kBefore,
     kChangesMask,
     [](int64_t form, AuditCase* c) { return SetMask(MaskWay::kAddedAfterSoftmax, form, c); }},
    {"mask_multiplied", "a 0/1 mask multiplies the scores: hidden keys get score 0", kBefore,
     kChangesMask,
     [](int64_t form, AuditCase* c) { return SetMask(MaskWay::kMultiplied, form, c); }},
    {"causal_strict", "causal off by one: a query does not see its own token", kOwnToken,
     kChangesReach, [](int64_t form, AuditCase* c) { return Shift(-1, form, c); }},
    {"causal_future", "causal off by one: a query sees one future token", kOwnToken, kChangesReach,
     [](int64_t form, AuditCase* c) { return Shift(1, form, c); }},
    {"causal_missing", "the causal mask is not applied: queries see all keys", kOwnToken,
     kChangesReach, CausalMissing},
    {"causal_added", "a causal mask is applied to a bidirectional layer",
     "let every query see all keys", kChangesReach, CausalAdded},
    {"causal_alignment",
     "the causal triangle is aligned top-left instead of bottom-right (T and S differ)",
     "name the alignment: bottom-right lets the last query see the last key", kChangesReach,
     CausalAlignment},
    {"pad_attended", "padding is attended: shorter sequences see rows of zeros behind their end",
     "hide the keys behind each sequence's end", kChangesPadding,
     [](int64_t form, AuditCase* c) { return Pad(false, form, c); }},
    {"pad_inverted", "the padding mask's polarity is inverted: only padding is attended",
     "hide padding and show tokens, not the other way round", kChangesPadding,
     [](int64_t form, AuditCase* c) { return Pad(true, form, c); }},
    {"window_ignored", "the sliding window is ignored",
     "hide keys that are further back than the window", kChangesReach,
     [](int64_t form, AuditCase* c) {
       const bool had = c->plan.reach->window.has_value();
       c->plan.reach->window.reset();
       return form == 0 && had;
     }},
    {"window_plus_one", "the sliding window is one key too wide",
     "a causal window of W counts the query's own token", kChangesReach,
     [](int64_t form, AuditCase* c) {
       if (form > 0 || !c->plan.reach->window.has_value()) return false;
       ++*c->plan.reach->window;
       return true;
     }},
};

}  // namespace

absl::Span<const Mistake> MaskMistakes() { return kMistakes; }

}  // namespace headwise
