// SPDX-License-Identifier: Apache-2.0
// ablate.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ablate_inputs.h"
#include "client/ablate_request.h"
#include "client/html_report.h"
#include "client/input.h"
#include "client/json.h"
#include "client/status.h"
#include "client/tensors.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

using Align = Table::Align;

constexpr int kBarWidth = 40;

std::string Tokens(const v1::Intervention& intervention) {
  if (intervention.token_begin() == 0 && !intervention.has_token_end()) return "";
  return absl::StrCat(" at ", intervention.token_begin(), ":",
                      intervention.has_token_end() ? absl::StrCat(intervention.token_end()) : "");
}

// "zero", "scale 0.5 at 0:4", joined where there are several.
std::string What(const v1::AblationEffect& ablation) {
  std::vector<std::string> parts;
  for (const v1::Intervention& intervention : ablation.interventions()) {
    std::string text = absl::AsciiStrToLower(v1::Intervention::Kind_Name(intervention.kind()));
    if (intervention.kind() == v1::Intervention::SCALE) {
      absl::StrAppend(&text, " ", intervention.scale());
    }
    absl::StrAppend(&text, Tokens(intervention));
    if (std::find(parts.begin(), parts.end(), text) == parts.end()) parts.push_back(text);
  }
  return parts.empty() ? "nothing" : absl::StrJoin(parts, ", ");
}

std::string Percent(bool defined, double value) {
  return defined ? absl::StrFormat("%.2f %%", 100 * value) : "-";
}

std::string IntervalText(const v1::EffectIntervals& intervals) {
  if (!intervals.has_relative_l2()) return "-";
  return absl::StrFormat("%.2f to %.2f %%", 100 * intervals.relative_l2().low(),
                         100 * intervals.relative_l2().high());
}

// What the intervals are: all of an answer are of one kind.
std::string IntervalTitle(const v1::AblateResult& result) {
  for (const v1::AblationEffect& ablation : result.ablations()) {
    if (!ablation.intervals().has_relative_l2()) continue;
    const v1::Interval& interval = ablation.intervals().relative_l2();
    if (interval.method() == "RANGE") return "sequences' range";
    return absl::StrFormat("%g %% interval", 100 * interval.level());
  }
  return "interval";
}

std::string PruneTable(const v1::PrunePlan& plan, const Terminal& terminal) {
  Table table({{"dropped", Align::kRight},
               {"relative L2", Align::kRight},
               {"gated", Align::kRight},
               {"means folded", Align::kRight},
               {"both", Align::kRight},
               {"parameters saved", Align::kRight}});
  for (const v1::PruneStep& step : plan.steps()) {
    const v1::PruneErrors& e = step.relative_l2();
    table.Add({CompactList({step.dropped().begin(), step.dropped().end()}),
               Percent(e.has_ungated(), e.ungated()), Percent(e.has_gated(), e.gated()),
               Percent(e.has_mean_folded(), e.mean_folded()),
               Percent(e.has_gated_mean_folded(), e.gated_mean_folded()),
               Grouped(step.parameters_saved())});
  }
  return absl::StrCat("prune order: ", absl::StrJoin(plan.order(), ","),
                      "; change of y on sequences that nothing was fitted to, ", plan.folds(),
                      " folds:\n\n", table.Render(terminal));
}

std::string EffectTable(const v1::AblateResult& result, const Terminal& terminal) {
  const bool groups = result.target() == v1::GROUPS && result.sweep() != v1::SWEEP_UNSPECIFIED;
  double largest = 0;
  for (const v1::AblationEffect& ablation : result.ablations()) {
    largest = std::max(largest, ablation.effect().relative_l2());
  }
  Table table({{groups ? "group" : "heads", Align::kRight},
               {groups ? "heads" : "ablation"},
               {"relative L2", Align::kRight},
               {IntervalTitle(result)},
               {"cosine", Align::kRight},
               {""}});
  for (const v1::AblationEffect& ablation : result.ablations()) {
    const std::string heads = CompactList({ablation.heads().begin(), ablation.heads().end()});
    std::vector<uint32_t> group_ids;
    for (const v1::Intervention& part : ablation.interventions()) {
      group_ids.insert(group_ids.end(), part.groups().begin(), part.groups().end());
    }
    const v1::Effect& effect = ablation.effect();
    table.Add({groups ? CompactList(group_ids) : heads, groups ? heads : What(ablation),
               Percent(effect.has_relative_l2(), effect.relative_l2()),
               IntervalText(ablation.intervals()),
               effect.has_cosine() ? absl::StrFormat("%.4f", effect.cosine()) : "-",
               Bar(effect.relative_l2(), largest, kBarWidth, terminal)});
  }
  return table.Render(terminal);
}

std::string InteractionTable(const v1::AblateResult& result, const Terminal& terminal) {
  Table table({{"pair", Align::kRight},
               {"interaction", Align::kRight},
               {"relative L2", Align::kRight},
               {"if orthogonal", Align::kRight}});
  for (const v1::Interaction& pair : result.interactions()) {
    table.Add({absl::StrJoin(pair.heads(), ","),
               pair.has_interaction() ? absl::StrFormat("%.3f", pair.interaction()) : "-",
               Percent(pair.has_relative_l2(), pair.relative_l2()),
               Percent(pair.has_relative_l2_if_orthogonal(), pair.relative_l2_if_orthogonal())});
  }
  return table.Render(terminal);
}

std::string Report(const v1::AblateResult& result, const Terminal& terminal) {
  std::string text =
      absl::StrFormat("%s version %d: %d sequences, %d tokens, %d forward%s, computed in %s\n",
                      CleanText(result.layer()), result.layer_version(),
                      result.scope().n_sequences(), result.scope().n_tokens(), result.forwards(),
                      result.forwards() == 1 ? "" : "s", HumanMicros(result.compute_us()));
  absl::StrAppend(&text,
                  "change of y (L2 over all tokens, relative to y) when heads are ablated:\n\n",
                  EffectTable(result, terminal));
  for (const v1::AblationEffect& ablation : result.ablations()) {
    if (ablation.undefined_reason().empty()) continue;
    absl::StrAppend(&text, "ablation ", ablation.index(), ": ", ablation.undefined_sequences(),
                    " sequences left out: ", CleanText(ablation.undefined_reason()), "\n");
  }
  if (!result.interactions().empty()) {
    absl::StrAppend(&text, "\n", InteractionTable(result, terminal));
  }
  if (result.has_prune_plan()) {
    absl::StrAppend(&text, "\n", PruneTable(result.prune_plan(), terminal));
  }
  if (!result.scope().text().empty()) {
    absl::StrAppend(&text, "\n", CleanText(result.scope().text()), "\n");
  }
  return text;
}

absl::StatusOr<v1::AblateResult> AblateAll(Session& session) {
  CLIENT_ASSIGN_OR_RETURN(v1::AblateRequest request,
                          BuildAblateRequest(session.args, session.name()));
  CLIENT_ASSIGN_OR_RETURN(const auto priority, session.args.Int("priority"));
  if (priority.has_value()) request.set_priority(*priority);
  CLIENT_ASSIGN_OR_RETURN(const std::vector<Args> inputs, SplitInputs(session.args));
  if (inputs.size() > 1) {
    return AblateInputs(&session.client, inputs, std::move(request), session.progress);
  }
  CLIENT_ASSIGN_OR_RETURN(*request.mutable_input(), BuildInput(session.args));
  return session.client.Ablate(request, session.progress);
}

absl::Status Ablate(Session& session) {
  const Args& args = session.args;
  CLIENT_ASSIGN_OR_RETURN(const v1::AblateResult result, AblateAll(session));
  if (args.Has("output")) {
    CLIENT_RETURN_IF_ERROR(WriteTensors(args.Text("output"), result.tensors()));
  }
  if (args.Has("report")) {
    CLIENT_RETURN_IF_ERROR(WritePage(args.Text("report"), AblationPage(result)));
  }
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(result));
    return absl::OkStatus();
  }
  session.out = Report(result, session.terminal);
  if (args.Has("output")) absl::StrAppend(&session.out, "wrote ", args.Text("output"), "\n");
  return absl::OkStatus();
}

}  // namespace

Verb AblateVerb() {
  std::vector<Flag> flags = InputFlags();
  flags.insert(flags.end(), AblateFlags().begin(), AblateFlags().end());
  flags.push_back(
      {"priority", "N", "among this client's requests; higher goes first, 0 by default"});
  return {.name = "ablate",
          .arguments = "NAME",
          .summary = "what the layer's output loses when heads are ablated",
          .min_positional = 1,
          .max_positional = 1,
          .flags = std::move(flags),
          .run = Ablate};
}

}  // namespace headwise::client
