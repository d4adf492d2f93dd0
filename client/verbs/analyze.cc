// SPDX-License-Identifier: Apache-2.0
// analyze.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/html_report.h"
#include "client/input.h"
#include "client/json.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

std::vector<Flag> AnalyzeFlags() {
  return {{"token-ids", "F[:NAME]", "[N]: for the induction score"},
          {"directions", "F[:NAME]", "[n, D] or [n, N, D]: <g, c_r> of each"},
          {"permutations", "N", "of the null; 999 by default"},
          {"family-wise-level", "P", "of findings; 0.05 by default"},
          {"max-tokens", "N", "CKA and the null look at so many at most"},
          {"level", "P", "of the intervals; 0.95 by default"},
          {"resamples", "N", "of the intervals; 2000 by default"},
          {"seed", "N", "of intervals, sample and permutations"},
          {"report", "OUT.html", "one page with the figures"},
          {"expected-version", "N", "refuse another version of the layer"}};
}

absl::StatusOr<v1::AnalyzeHeadsRequest> BuildRequest(const Args& args, const std::string& layer) {
  v1::AnalyzeHeadsRequest request;
  request.set_layer(layer);
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> version, args.Uint("expected-version"));
  if (version.has_value()) request.set_expected_version(*version);
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> permutations, args.Uint("permutations"));
  request.set_permutations(permutations.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> level, args.Number("family-wise-level"));
  request.set_family_wise_level(level.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> tokens, args.Uint("max-tokens"));
  request.set_max_tokens(tokens.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> seed, args.Uint("seed"));
  request.set_seed(seed.value_or(0));
  request.mutable_bootstrap()->set_seed(seed.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<uint32_t> resamples, args.Uint("resamples"));
  request.mutable_bootstrap()->set_resamples(resamples.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(const std::optional<double> confidence, args.Number("level"));
  request.mutable_bootstrap()->set_level(confidence.value_or(0));
  CLIENT_ASSIGN_OR_RETURN(*request.mutable_input(), BuildInput(args));
  if (args.Has("token-ids")) {
    CLIENT_ASSIGN_OR_RETURN(*request.mutable_token_ids(),
                            ReadIds(args.Text("token-ids"), "token_ids"));
  }
  if (args.Has("directions")) {
    CLIENT_ASSIGN_OR_RETURN(*request.mutable_directions(),
                            ReadFloats(args.Text("directions"), "directions"));
  }
  return request;
}

std::string Number(bool defined, double value) {
  return defined ? absl::StrFormat("%.3f", value) : "-";
}

// "0.312 [0.29, 0.33]".
template <typename StatType>
std::string Figure(const StatType& stat) {
  if (!stat.has_value()) return "-";
  if (!stat.has_interval()) return Number(true, stat.value());
  return absl::StrFormat("%.3f [%.3f, %.3f]", stat.value(), stat.interval().low(),
                         stat.interval().high());
}

std::string HeadTable(const v1::AnalyzeHeadsResult& result, const Terminal& terminal) {
  Table table({{"head", Align::kRight},
               {"entropy (nats)", Align::kRight},
               {"share of ln(keys)", Align::kRight},
               {"self", Align::kRight},
               {"previous", Align::kRight},
               {"first", Align::kRight},
               {"distance", Align::kRight},
               {"norm share", Align::kRight},
               {"induction", Align::kRight}});
  for (const v1::HeadStatistics& head : result.heads()) {
    const auto plain = [](const v1::Stat& stat) { return Number(stat.has_value(), stat.value()); };
    table.Add({absl::StrCat(head.head()), Figure(head.entropy_nats()), plain(head.entropy_share()),
               plain(head.self_mass()), plain(head.previous_token_mass()),
               plain(head.first_token_mass()), plain(head.mean_distance()),
               plain(head.norm_share()), plain(head.induction_score())});
  }
  return table.Render(terminal);
}

std::string PairTable(const v1::AnalyzeHeadsResult& result, const Terminal& terminal) {
  Table table({{"pair", Align::kRight},
               {"JS distance", Align::kRight},
               {"CKA", Align::kRight},
               {"p", Align::kRight},
               {"cosine", Align::kRight},
               {"p", Align::kRight}});
  int shown = 0;
  for (const v1::HeadPair& pair : result.pairs()) {
    if (!pair.cka().finding() && !pair.cosine().finding()) continue;
    ++shown;
    table.Add({absl::StrJoin(pair.heads(), ","), Figure(pair.js_distance()), Figure(pair.cka()),
               Number(pair.cka().has_p_value(), pair.cka().p_value()), Figure(pair.cosine()),
               Number(pair.cosine().has_p_value(), pair.cosine().p_value())});
  }
  if (shown == 0) return "no pair stands out of the permutation null\n";
  return table.Render(terminal);
}

std::string Report(const v1::AnalyzeHeadsResult& result, const Terminal& terminal) {
  const v1::PermutationNull& null = result.permutation_null();
  std::string text = absl::StrFormat("%s version %d: %d sequences, %d tokens\n\n",
                                     CleanText(result.layer()), result.layer_version(),
                                     result.scope().n_sequences(), result.scope().n_tokens());
  absl::StrAppend(&text, HeadTable(result, terminal));
  absl::StrAppendFormat(&text,
                        "\npairs whose contributions are more alike than %d permutations of tokens "
                        "(family-wise %g, %d tokens%s); evidence, not proof, of redundancy:\n\n",
                        null.permutations(), null.family_wise_level(), null.tokens_used(),
                        null.sampled() ? " sampled" : "");
  absl::StrAppend(&text, PairTable(result, terminal), "\n", CleanText(result.scope().text()), "\n");
  return text;
}

absl::Status Analyze(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(const v1::AnalyzeHeadsRequest request,
                          BuildRequest(session.args, session.name()));
  CLIENT_ASSIGN_OR_RETURN(const v1::AnalyzeHeadsResult result,
                          session.client.AnalyzeHeads(request, session.progress));
  if (session.args.Has("report")) {
    const WeightMaps weights = AskForWeights(&session.client, session.name(), request.input());
    CLIENT_RETURN_IF_ERROR(WritePage(session.args.Text("report"), AnalysisPage(result, weights)));
  }
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(result));
  } else {
    session.out = Report(result, session.terminal);
  }
  return absl::OkStatus();
}

}  // namespace

Verb AnalyzeVerb() {
  std::vector<Flag> flags = InputFlags();
  const std::vector<Flag> own = AnalyzeFlags();
  flags.insert(flags.end(), own.begin(), own.end());
  return {.name = "analyze",
          .arguments = "NAME",
          .summary = "what each head attends to, and which heads do alike",
          .min_positional = 1,
          .max_positional = 1,
          .flags = std::move(flags),
          .run = Analyze};
}

}  // namespace headwise::client
