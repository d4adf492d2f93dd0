// SPDX-License-Identifier: Apache-2.0
#include "server/codec_analysis.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/codec_ablation.h"
#include "server/codec_tensor.h"

namespace headwise {
namespace {

void EncodeStat(const Stat& stat, v1::Stat* wire) {
  if (stat.value.has_value()) wire->set_value(*stat.value);
  if (stat.interval.has_value()) EncodeInterval(*stat.interval, wire->mutable_interval());
}

void EncodeTested(const TestedStat& stat, v1::TestedStat* wire) {
  if (stat.value.has_value()) wire->set_value(*stat.value);
  if (stat.interval.has_value()) EncodeInterval(*stat.interval, wire->mutable_interval());
  if (stat.p_value.has_value()) wire->set_p_value(*stat.p_value);
  wire->set_finding(stat.finding);
}

void EncodeHead(const HeadStatistics& head, v1::HeadStatistics* wire) {
  wire->set_head(static_cast<uint32_t>(head.head));
  EncodeStat(head.entropy_nats, wire->mutable_entropy_nats());
  EncodeStat(head.entropy_share, wire->mutable_entropy_share());
  EncodeStat(head.self_mass, wire->mutable_self_mass());
  EncodeStat(head.previous_token_mass, wire->mutable_previous_token_mass());
  EncodeStat(head.first_token_mass, wire->mutable_first_token_mass());
  EncodeStat(head.mean_distance, wire->mutable_mean_distance());
  EncodeStat(head.norm_share, wire->mutable_norm_share());
  EncodeStat(head.induction_score, wire->mutable_induction_score());
  for (const Stat& direction : head.directions) EncodeStat(direction, wire->add_directions());
}

void EncodeScope(const PassInfo& pass, v1::Scope* scope) {
  int64_t tokens = 0;
  for (const int64_t length : pass.lengths) tokens += length;
  scope->set_n_sequences(static_cast<uint32_t>(pass.lengths.size()));
  scope->set_n_tokens(static_cast<uint32_t>(tokens));
  scope->set_intervened_on("");
  scope->set_measured_at("p, contributions");
  scope->set_text(absl::StrCat(
      pass.lengths.size(), " sequences, ", tokens,
      " tokens; nothing was changed; heads' weights p and contributions z W_O of these tokens, not "
      "what a task needs; p values are evidence on this sample, beside the effect size"));
}

}  // namespace

absl::StatusOr<AnalysisOptions> DecodeAnalysisOptions(const v1::AnalyzeHeadsRequest& request) {
  AnalysisOptions options;
  const v1::Bootstrap& bootstrap = request.bootstrap();
  if (bootstrap.level() != 0.0) options.bootstrap.level = bootstrap.level();
  if (bootstrap.resamples() != 0) options.bootstrap.resamples = bootstrap.resamples();
  options.bootstrap.seed = bootstrap.seed();
  if (request.permutations() != 0) options.permutations = request.permutations();
  if (request.family_wise_level() != 0.0) options.family_wise_level = request.family_wise_level();
  if (request.max_tokens() != 0) options.max_tokens = request.max_tokens();
  options.seed = request.seed();
  if (request.has_token_ids()) {
    const auto view = DecodeTensor(request.token_ids(), "token_ids");
    if (!view.ok()) return view.status();
    auto ids = ToIntegers(*view, "token_ids");
    if (!ids.ok()) return ids.status();
    options.token_ids = *std::move(ids);
  }
  if (request.has_directions()) {
    const auto view = DecodeTensor(request.directions(), "directions");
    if (!view.ok()) return view.status();
    auto floats = ToFloats(*view, "directions");
    if (!floats.ok()) return floats.status();
    options.directions = *std::move(floats);
    options.per_token = view->shape.size() == 3;
  }
  return options;
}

void EncodeAnalysis(const AnalysisResult& result, const PassInfo& pass,
                    v1::AnalyzeHeadsResult* wire) {
  wire->set_layer(pass.layer);
  wire->set_layer_version(static_cast<uint32_t>(pass.layer_version));
  EncodeScope(pass, wire->mutable_scope());
  for (const HeadStatistics& head : result.heads) EncodeHead(head, wire->add_heads());
  for (const HeadPair& pair : result.pairs) {
    v1::HeadPair* added = wire->add_pairs();
    for (const int64_t head : pair.heads) added->add_heads(static_cast<uint32_t>(head));
    EncodeStat(pair.js_distance, added->mutable_js_distance());
    EncodeTested(pair.cka, added->mutable_cka());
    EncodeTested(pair.cosine, added->mutable_cosine());
  }
  v1::PermutationNull* null = wire->mutable_permutation_null();
  null->set_permutations(static_cast<uint32_t>(result.permutations));
  null->set_family_wise_level(result.family_wise_level);
  null->set_tokens_used(static_cast<uint32_t>(result.tokens_used));
  null->set_sampled(result.sampled);
  null->set_seed(result.seed);
}

}  // namespace headwise
