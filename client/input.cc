// SPDX-License-Identifier: Apache-2.0
#include "client/input.h"

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/status.h"
#include "client/tensors.h"

namespace headwise::client {
namespace {

constexpr absl::string_view kMaskKinds[] = {"keep", "drop", "additive"};
constexpr v1::Mask::Kind kMaskKindValues[] = {v1::Mask::KEEP, v1::Mask::DROP, v1::Mask::ADDITIVE};
constexpr absl::string_view kCausal[] = {"none", "top-left", "bottom-right"};
constexpr v1::Causal::Alignment kCausalValues[] = {v1::Causal::NONE, v1::Causal::TOP_LEFT,
                                                   v1::Causal::BOTTOM_RIGHT};

absl::Status CheckGrammar(const Args& args) {
  if (!args.Has("input")) return UsageError("--input is missing");
  constexpr const char* kExclusive[][2] = {{"lengths", "lengths-from"},
                                           {"memory-lengths", "memory-lengths-from"}};
  for (const auto& [a, b] : kExclusive) {
    if (args.Has(a) && args.Has(b)) {
      return UsageError(absl::StrCat("--", a, " and --", b, " exclude each other"));
    }
  }
  constexpr const char* kNeeds[][2] = {{"memory-lengths", "memory"},
                                       {"memory-lengths-from", "memory"},
                                       {"memory-positions", "memory"},
                                       {"mask-kind", "mask"}};
  for (const auto& [flag, needed] : kNeeds) {
    if (args.Has(flag) && !args.Has(needed)) {
      return UsageError(absl::StrCat("--", flag, " needs --", needed));
    }
  }
  return absl::OkStatus();
}

// Lengths typed at the flag, or from the file of "FLAG-from".
absl::StatusOr<std::vector<uint32_t>> Lengths(const Args& args, const std::string& flag,
                                              absl::string_view field) {
  const std::string from = flag + "-from";
  if (args.Has(from)) return ReadLengths(args.Text(from), field);
  return args.UintList(flag);
}

// [B, S, D] becomes [B*S, D] with B lengths of S.
void FlattenMemory(v1::AttentionInput* input) {
  v1::Tensor* memory = input->mutable_memory();
  if (memory->shape_size() != 3 || input->memory_lengths_size() != 0) return;
  const uint32_t sequences = memory->shape(0), keys = memory->shape(1), width = memory->shape(2);
  for (uint32_t b = 0; b < sequences; ++b) input->add_memory_lengths(keys);
  memory->clear_shape();
  memory->add_shape(sequences * keys);
  memory->add_shape(width);
}

// Where there is one sequence, the mask's shape says which form it is, whatever its element count.
v1::Mask::Form FormOf(const v1::AttentionInput& input) {
  const v1::Tensor& x = input.x();
  const bool dense = x.shape_size() == 3;
  const bool single = dense ? x.shape(0) == 1 : input.lengths_size() <= 1;
  if (!single || x.shape_size() < 2) return v1::Mask::FORM_UNSPECIFIED;
  const uint32_t queries = x.shape(dense ? 1 : 0);
  const uint32_t keys =
      input.has_memory() && input.memory().shape_size() > 0 ? input.memory().shape(0) : queries;
  const auto& shape = input.mask().tensor().shape();
  const int axes = shape.size();
  if (axes == 0 || shape[axes - 1] != keys) return v1::Mask::FORM_UNSPECIFIED;
  if (axes == 1) return v1::Mask::KEY;
  if (shape[axes - 2] != queries) return v1::Mask::FORM_UNSPECIFIED;
  return axes == 2 ? v1::Mask::PAIR : v1::Mask::HEAD;
}

absl::Status AddMask(const Args& args, std::optional<size_t> kind, v1::AttentionInput* input) {
  v1::Mask* mask = input->mutable_mask();
  if (kind.has_value()) mask->set_kind(kMaskKindValues[*kind]);
  CLIENT_ASSIGN_OR_RETURN(*mask->mutable_tensor(), ReadMask(args.Text("mask")));
  mask->set_form(FormOf(*input));
  return absl::OkStatus();
}

absl::Status ReadFiles(const Args& args, v1::AttentionInput* input) {
  CLIENT_ASSIGN_OR_RETURN(*input->mutable_x(), ReadFloats(args.Text("input"), "x"));
  CLIENT_ASSIGN_OR_RETURN(const auto lengths, Lengths(args, "lengths", "lengths"));
  input->mutable_lengths()->Add(lengths.begin(), lengths.end());
  if (args.Has("memory")) {
    CLIENT_ASSIGN_OR_RETURN(*input->mutable_memory(), ReadFloats(args.Text("memory"), "memory"));
    CLIENT_ASSIGN_OR_RETURN(const auto keys, Lengths(args, "memory-lengths", "memory_lengths"));
    input->mutable_memory_lengths()->Add(keys.begin(), keys.end());
    FlattenMemory(input);
  }
  if (args.Has("positions")) {
    CLIENT_ASSIGN_OR_RETURN(*input->mutable_positions(),
                            ReadIds(args.Text("positions"), "positions"));
  }
  if (args.Has("memory-positions")) {
    CLIENT_ASSIGN_OR_RETURN(*input->mutable_memory_positions(),
                            ReadIds(args.Text("memory-positions"), "memory_positions"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<Flag>& InputFlags() {
  static const auto* flags = new std::vector<Flag>{
      {"input", "F[:NAME]", "x [N, D] or [B, T, D]: .npy or .safetensors"},
      {"lengths", "7,3,5", "tokens of each sequence of x; absent: one sequence"},
      {"lengths-from", "F[:NAME]", "the same from a file"},
      {"memory", "F[:NAME]", "[M, d_memory]: what keys and values are computed from"},
      {"memory-lengths", "9,4", "keys of each sequence"},
      {"memory-lengths-from", "F[:NAME]", "the same from a file"},
      {"mask", "F[:NAME]", "[S], [T, S] or [H, T, S] of each sequence, one after the other"},
      {"mask-kind", "keep|drop|additive", "what the mask's numbers mean"},
      {"causal", "none|top-left|bottom-right", "replaces the layer's own setting"},
      {"window", "W", "replaces the layer's own window"},
      {"positions", "F[:NAME]", "[N] position ids; absent: 0..T-1"},
      {"memory-positions", "F[:NAME]", "[M] position ids of the memory"},
  };
  return *flags;
}

absl::StatusOr<v1::AttentionInput> BuildInput(const Args& args) {
  CLIENT_RETURN_IF_ERROR(CheckGrammar(args));
  v1::AttentionInput input;
  CLIENT_ASSIGN_OR_RETURN(const size_t kind,
                          args.Choice("mask-kind", kMaskKinds, std::size(kMaskKinds)));
  CLIENT_ASSIGN_OR_RETURN(const size_t causal, args.Choice("causal", kCausal, std::size(kCausal)));
  if (causal < std::size(kCausal)) input.set_causal(kCausalValues[causal]);
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> window, args.Uint("window"));
  if (window.has_value()) input.set_window(*window);
  for (const char* flag : {"lengths", "memory-lengths"}) {
    CLIENT_RETURN_IF_ERROR(args.UintList(flag).status());
  }
  CLIENT_RETURN_IF_ERROR(ReadFiles(args, &input));
  if (args.Has("mask")) {
    const bool named = kind < std::size(kMaskKinds);
    CLIENT_RETURN_IF_ERROR(AddMask(args, named ? std::optional(kind) : std::nullopt, &input));
  }
  return input;
}

}  // namespace headwise::client
