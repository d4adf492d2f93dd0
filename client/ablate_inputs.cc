// SPDX-License-Identifier: Apache-2.0
#include "client/ablate_inputs.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/ablate_split.h"
#include "client/ablate_totals.h"
#include "client/input.h"
#include "client/status.h"

namespace headwise::client {
namespace {

constexpr const char* kFileFlags[] = {"lengths-from", "memory",    "memory-lengths-from",
                                      "mask",         "positions", "memory-positions"};

BootstrapOptions OptionsOf(const v1::Bootstrap& wire) {
  BootstrapOptions options;
  if (wire.level() != 0) options.level = wire.level();
  if (wire.resamples() != 0) options.resamples = wire.resamples();
  options.seed = wire.seed();
  return options;
}

std::vector<uint32_t> LengthsOf(const v1::AttentionInput& input) {
  if (input.lengths_size() > 0) return {input.lengths().begin(), input.lengths().end()};
  if (input.x().shape_size() == 3) {
    return std::vector<uint32_t>(input.x().shape(0), input.x().shape(1));
  }
  return {input.x().shape_size() > 0 ? input.x().shape(0) : 0};
}

bool OwnMean(const v1::Intervention& intervention) {
  return intervention.kind() == v1::Intervention::MEAN && !intervention.has_tensor();
}

// Interventions of the request that take a mean of its own, the sweep's included.
std::vector<v1::Intervention*> OwnMeans(v1::AblateRequest* request) {
  std::vector<v1::Intervention*> means;
  if (OwnMean(request->sweep_intervention())) {
    means.push_back(request->mutable_sweep_intervention());
  }
  for (v1::Ablation& ablation : *request->mutable_ablations()) {
    for (v1::Intervention& intervention : *ablation.mutable_interventions()) {
      if (OwnMean(intervention)) means.push_back(&intervention);
    }
  }
  return means;
}

class Inputs {
 public:
  Inputs(Client* client, const std::vector<Args>& inputs, const ProgressCallback& progress)
      : client_(*client), inputs_(inputs), progress_(progress) {}

  absl::StatusOr<v1::AblateResult> Run(v1::AblateRequest request) {
    const v1::AblateRequest asked = request;
    const bool means = !OwnMeans(&request).empty();
    const bool greedy = request.sweep() == v1::CUMULATIVE && request.order().empty();
    steps_ = static_cast<int64_t>(inputs_.size()) * (1 + (means ? 1 : 0) + (greedy ? 1 : 0));
    if (CountsThrough(request)) CLIENT_RETURN_IF_ERROR(ReadParts(request));
    if (means) CLIENT_RETURN_IF_ERROR(TakeMeans(&request));
    if (greedy) CLIENT_RETURN_IF_ERROR(FindOrder(&request));
    CLIENT_ASSIGN_OR_RETURN(v1::AblateResult result, Total(request));
    result.set_forwards(result.forwards() + forwards_);
    Echo(asked, &result);
    return result;
  }

 private:
  // Lengths of all inputs, before any is sent.
  absl::Status ReadParts(const v1::AblateRequest& request) {
    std::vector<std::vector<uint32_t>> lengths;
    for (const Args& args : inputs_) {
      CLIENT_ASSIGN_OR_RETURN(const v1::AttentionInput input, BuildInput(args));
      lengths.push_back(LengthsOf(input));
    }
    parts_ = PartsOf(lengths);
    return CheckWhole(request, parts_);
  }

  // Asks for every input in turn; `take` may change the request for the next one.
  absl::Status ForEach(v1::AblateRequest* request,
                       const std::function<absl::Status(v1::AblateResult)>& take) {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      v1::AblateRequest one = parts_.empty() ? *request : RequestForPart(*request, parts_[i]);
      CLIENT_ASSIGN_OR_RETURN(*one.mutable_input(), BuildInput(inputs_[i]));
      CLIENT_ASSIGN_OR_RETURN(v1::AblateResult result, client_.Ablate(one));
      CLIENT_RETURN_IF_ERROR(take(std::move(result)));
      if (progress_) progress_("ablate", ++done_, steps_);
    }
    return absl::OkStatus();
  }

  // A request of the same layer whose figures nobody looks at.
  static v1::AblateRequest ForSums(const v1::AblateRequest& request) {
    constexpr uint32_t kFewestResamples = 100;
    v1::AblateRequest sums;
    sums.set_layer(request.layer());
    if (request.has_expected_version()) sums.set_expected_version(request.expected_version());
    sums.set_priority(request.priority());
    sums.set_return_sums(true);
    sums.mutable_bootstrap()->set_resamples(kFewestResamples);
    return sums;
  }

  // Gives every mean of the request's own its vector: the mean over all inputs.
  absl::Status TakeMeans(v1::AblateRequest* request) {
    const std::vector<v1::Intervention*> means = OwnMeans(request);
    v1::AblateRequest sums = ForSums(*request);
    for (const v1::Intervention* mean : means) {
      v1::Intervention* asked = sums.add_ablations()->add_interventions();
      *asked = *mean;
      if (!asked->heads().empty() || !asked->groups().empty()) continue;
      v1::GetLayerRequest layer;  // a sweep: of all heads
      layer.set_name(request->layer());
      CLIENT_ASSIGN_OR_RETURN(const v1::LayerDetails details, client_.GetLayer(layer));
      *asked->mutable_heads() = details.head_ids();
    }
    std::vector<std::vector<v1::HeadMeanSums>> totals(means.size());
    CLIENT_RETURN_IF_ERROR(ForEach(&sums, [&](const v1::AblateResult& result) {
      forwards_ += result.forwards();
      absl::Status added;
      for (int a = 0; a < result.ablations_size(); ++a) {
        added.Update(AddMeans(result.ablations(a), &totals.at(static_cast<size_t>(a))));
      }
      return added;
    }));
    for (size_t i = 0; i < means.size(); ++i) SetMean(totals[i], means[i]);
    return absl::OkStatus();
  }

  static absl::Status AddMeans(const v1::AblationEffect& effect,
                               std::vector<v1::HeadMeanSums>* totals) {
    if (effect.means().empty()) return absl::OkStatus();  // this input has none of its tokens
    if (totals->empty()) {
      totals->assign(effect.means().begin(), effect.means().end());
      return absl::OkStatus();
    }
    for (int h = 0; h < effect.means_size(); ++h) {
      const v1::HeadMeanSums& own = effect.means(h);
      if (totals->size() != static_cast<size_t>(effect.means_size()) ||
          totals->at(static_cast<size_t>(h)).sum_size() != own.sum_size()) {
        return absl::InternalError("answer: must hold sums of the same heads for every input");
      }
      v1::HeadMeanSums& total = totals->at(static_cast<size_t>(h));
      total.set_tokens(total.tokens() + own.tokens());
      for (int d = 0; d < own.sum_size(); ++d) total.set_sum(d, total.sum(d) + own.sum(d));
    }
    return absl::OkStatus();
  }

  static void SetMean(const std::vector<v1::HeadMeanSums>& totals, v1::Intervention* mean) {
    std::vector<float> numbers;
    for (const v1::HeadMeanSums& total : totals) {
      for (const double sum : total.sum()) {
        const double count = static_cast<double>(total.tokens());
        numbers.push_back(static_cast<float>(total.tokens() == 0 ? 0.0 : sum / count));
      }
    }
    v1::Tensor* tensor = mean->mutable_tensor();
    tensor->set_dtype(v1::F32);
    tensor->add_shape(static_cast<uint32_t>(numbers.size()));
    tensor->set_data(numbers.data(), numbers.size() * sizeof(float));
  }

  // Puts the order in which each next unit adds least, ties to the lowest id, into the request.
  absl::Status FindOrder(v1::AblateRequest* request) {
    v1::AblateRequest sums = ForSums(*request);
    sums.set_sweep(v1::PAIRS);
    sums.set_target(request->target());
    *sums.mutable_sweep_intervention() = request->sweep_intervention();
    std::map<std::pair<uint32_t, uint32_t>, double> products;
    CLIENT_RETURN_IF_ERROR(ForEach(&sums, [&](const v1::AblateResult& result) {
      forwards_ += result.forwards();
      return AddProducts(result, &products);
    }));
    for (const uint32_t id : GreedyOrder(products)) request->add_order(id);
    return absl::OkStatus();
  }

  static absl::Status AddProducts(const v1::AblateResult& result,
                                  std::map<std::pair<uint32_t, uint32_t>, double>* products) {
    std::map<uint32_t, double> squares;
    for (int i = 0; i < result.interactions_size(); ++i) {
      const v1::Interaction& pair = result.interactions(i);
      const auto& done = result.ablations(i).interventions();
      if (pair.sums_size() != 5 || done.empty()) {
        return absl::InternalError("answer: must hold the sums of a pair; was without");
      }
      const auto& ids = done[0].groups().empty() ? done[0].heads() : done[0].groups();
      if (ids.size() != 2) return absl::InternalError("answer: a pair must be of two");
      (*products)[std::minmax(ids[0], ids[1])] += pair.sums(0);
      squares[ids[0]] = pair.sums(1);
      squares[ids[1]] = pair.sums(2);
    }
    for (const auto& [id, square] : squares) (*products)[{id, id}] += square;
    return absl::OkStatus();
  }

  static std::vector<uint32_t> GreedyOrder(
      const std::map<std::pair<uint32_t, uint32_t>, double>& products) {
    std::vector<uint32_t> left, order;
    for (const auto& [pair, product] : products) {
      if (pair.first == pair.second) left.push_back(pair.first);
    }
    while (!left.empty()) {
      auto best = left.begin();
      double least = std::numeric_limits<double>::infinity();
      for (auto unit = left.begin(); unit != left.end(); ++unit) {
        // What the unit adds to ‖sum of those chosen‖².
        double added = products.at({*unit, *unit});
        for (const uint32_t other : order) added += 2.0 * products.at(std::minmax(*unit, other));
        if (added >= least) continue;
        least = added;
        best = unit;
      }
      order.push_back(*best);
      left.erase(best);
    }
    return order;
  }

  // One input after the other; only their sums are kept.
  absl::StatusOr<v1::AblateResult> Total(v1::AblateRequest request) {
    request.set_return_sums(true);
    if (request.sweep() == v1::PRUNE_PLAN) request.mutable_prune_sums();
    AblateTotals totals(OptionsOf(request.bootstrap()));
    CLIENT_RETURN_IF_ERROR(ForEach(&request, [&](v1::AblateResult result) {
      if (result.prune_plan().has_sums()) {
        request.mutable_prune_sums()->Swap(result.mutable_prune_plan()->mutable_sums());
        result.mutable_prune_plan()->clear_sums();
      }
      return totals.Add(std::move(result));
    }));
    v1::AblateResult result = totals.Take();
    if (request.sweep() == v1::PRUNE_PLAN && result.prune_plan().steps().empty() &&
        request.prune_sums().sequences() < result.prune_plan().folds()) {
      return absl::InvalidArgumentError(
          absl::StrCat("folds: must be in [2, ", request.prune_sums().sequences(),
                       "], the sequences with tokens; was ", result.prune_plan().folds()));
    }
    return result;
  }

  // What was asked, where an input of its own was asked for something else.
  static void Echo(const v1::AblateRequest& asked, v1::AblateResult* result) {
    bool resampled = false;
    for (int a = 0; a < result->ablations_size(); ++a) {
      auto* done = result->mutable_ablations(a)->mutable_interventions();
      for (int i = 0; i < done->size(); ++i) {
        v1::Intervention meant = asked.sweep_intervention();
        if (a < asked.ablations_size()) meant = asked.ablations(a).interventions(i);
        meant.clear_tensor();
        meant.clear_donor();
        meant.clear_edges();
        *meant.mutable_heads() = done->at(i).heads();
        *meant.mutable_groups() = done->at(i).groups();
        if (meant.kind() == v1::Intervention::KIND_UNSPECIFIED) {
          meant.set_kind(v1::Intervention::ZERO);
        }
        resampled |= meant.kind() == v1::Intervention::RESAMPLE;
        done->at(i) = std::move(meant);
      }
    }
    if (!resampled) return;
    result->mutable_scope()->set_text(
        absl::StrCat(result->scope().text(), "; resampled within each input file"));
  }

  Client& client_;
  const std::vector<Args>& inputs_;
  const ProgressCallback& progress_;
  std::vector<InputPart> parts_;  // empty: nothing counts through the inputs
  uint32_t forwards_ = 0;         // of the passes before the last
  int64_t done_ = 0, steps_ = 0;  // inputs, over all passes
};

}  // namespace

absl::StatusOr<std::vector<Args>> SplitInputs(const Args& args) {
  const std::vector<std::string> files = absl::StrSplit(args.Text("input"), ',');
  if (files.size() < 2) return std::vector<Args>{args};
  std::vector<Args> inputs;
  for (const std::string& file : files) inputs.push_back(args.With("input", file));
  for (const char* flag : {"lengths", "memory-lengths", "return-p"}) {
    if (args.Has(flag)) {
      return UsageError(absl::StrCat("--", flag, " does not go with several files of --input"));
    }
  }
  if (args.Has("output") && !args.Has("gram") && !args.Has("means")) {
    return UsageError(
        "--output with several files of --input takes sums only: add --gram, --means");
  }
  for (const char* flag : kFileFlags) {
    if (!args.Has(flag)) continue;
    const std::vector<std::string> own = absl::StrSplit(args.Text(flag), ',');
    if (own.size() != files.size()) {
      return UsageError(absl::StrCat("--", flag, " needs a file for each one of --input"));
    }
    for (size_t i = 0; i < own.size(); ++i) inputs[i] = inputs[i].With(flag, own[i]);
  }
  return inputs;
}

absl::StatusOr<v1::AblateResult> AblateInputs(Client* client, const std::vector<Args>& inputs,
                                              v1::AblateRequest request,
                                              const ProgressCallback& progress) {
  request.set_return_y(false);
  request.set_return_ablation_y(false);
  request.clear_return_ablations();
  return Inputs(client, inputs, progress).Run(std::move(request));
}

}  // namespace headwise::client
