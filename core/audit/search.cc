// SPDX-License-Identifier: Apache-2.0
#include "core/audit/search.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/audit/head_order.h"

namespace headwise {
namespace {

constexpr absl::string_view kShuffled = "heads_shuffled";
constexpr absl::string_view kBf16Sums = "bf16_sums";
constexpr int64_t kMostForms = 4096;  // of one mistake: at most one a head

// A form of a mistake that there is here. Made anew each time: some copy the layer's weights.
struct Form {
  const Mistake* mistake = nullptr;
  int64_t form = 0;
  bool own_products = false;  // x W differs

  AppliedMistake applied() const { return {mistake, form}; }
  std::optional<AuditCase> In(AuditCase c) const {
    if (!mistake->apply(form, &c)) return std::nullopt;
    return c;
  }
};

class Search {
 public:
  Search(const AuditCase& right, const TheirTensors& theirs, const SearchOptions& options)
      : options_(options), evaluator_(right, theirs, options.stated) {}

  SearchResult Run() {
    result_.stages = evaluator_.stages();
    for (const StageDeviation& stage : result_.stages) {
      if (!stage.deviation.agrees() && !result_.first_difference.has_value()) {
        result_.first_difference = stage.stage;
      }
    }
    if (!result_.first_difference.has_value()) return std::move(result_);
    result_.verdict = AuditVerdict::kUnexplained;
    ListForms();
    TrySingles();
    if (result_.explanations.empty()) TrySums();
    if (result_.explanations.empty() && options_.pairs) TryPairs();
    if (!result_.explanations.empty()) result_.verdict = AuditVerdict::kExplained;
    return std::move(result_);
  }

 private:
  bool Stopped() const { return options_.stop && options_.stop(); }
  void Progress(absl::string_view stage, size_t done, size_t total) const {
    if (!options_.progress) return;
    options_.progress(stage, static_cast<int64_t>(done), static_cast<int64_t>(total));
  }

  void ListForms() {
    for (const Mistake& mistake : Mistakes()) {
      if (mistake.apply == nullptr) continue;
      for (int64_t form = 0; form < kMostForms; ++form) {
        Form made{&mistake, form};
        const auto c = made.In(evaluator_.right());
        if (!c.has_value()) break;
        made.own_products = !c->projection_key.empty();
        forms_.push_back(made);
      }
    }
  }

  std::optional<Deviation> Try(const AuditCase& c, uint32_t changes) {
    return (changes & kChangesNumbers) != 0 ? evaluator_.TryNumbers(c) : evaluator_.Try(c);
  }

  // The order of heads, on top of what `c` does.
  std::optional<AuditCase> Shuffled(const AuditCase& c) {
    if (c.plan.mixes_rows() || c.plan.skip_wo || c.plan.add_x || !c.plan.zero_slices.empty()) {
      return std::nullopt;
    }
    AuditCase shuffled = c;
    const auto order = FindHeadOrder(c, evaluator_.Tensors(c), evaluator_.theirs().y);
    if (!order.has_value()) return std::nullopt;
    if (std::is_sorted(order->begin(), order->end())) return std::nullopt;
    shuffled.plan.order = *order;
    return shuffled;
  }

  void TrySingles() {
    for (size_t i = 0; i < forms_.size() && !Stopped(); ++i) {
      Progress("mistakes", i, forms_.size() + 1);
      const Form& made = forms_[i];
      const AuditCase c = *made.In(evaluator_.right());
      const auto found = Try(c, made.mistake->changes);
      if (found.has_value()) Add({made.applied()}, c, *found);
    }
    Progress("mistakes", forms_.size(), forms_.size() + 1);
    if (Stopped()) return;
    if (const auto shuffled = Shuffled(evaluator_.right()); shuffled.has_value()) {
      const auto found = evaluator_.Try(*shuffled);
      // A rolled or reversed order has been named already.
      const bool named =
          std::any_of(result_.explanations.begin(), result_.explanations.end(),
                      [&](const AuditExplanation& e) { return !e.computation.plan.order.empty(); });
      if (found.has_value() && !named) Add({{FindMistake(kShuffled)}}, *shuffled, *found);
    }
    Progress("mistakes", forms_.size() + 1, forms_.size() + 1);
  }

  void TrySums() {
    const auto found = evaluator_.TryBf16Sums();
    if (found.has_value()) Add({{FindMistake(kBf16Sums)}}, evaluator_.right(), *found);
  }

  void TryPairs() {
    // What changes nothing here would only double what is found without it.
    std::vector<Form> forms;
    for (const Form& form : forms_) {
      if (!evaluator_.HasNoEffect(*form.In(evaluator_.right()))) forms.push_back(form);
    }
    // Those with products of their own come first, so that these are made once.
    std::stable_partition(forms.begin(), forms.end(),
                          [](const Form& form) { return form.own_products; });
    for (size_t i = 0; i < forms.size() && !Stopped(); ++i) {
      Progress("pairs", i, forms.size());
      const AuditCase first = *forms[i].In(evaluator_.right());
      TryOrderWith(forms[i], first);
      for (size_t j = i + 1; j < forms.size() && !Stopped(); ++j) {
        TryPair(forms[i], first, forms[j]);
      }
    }
    Progress("pairs", forms.size(), forms.size());
  }

  void TryPair(const Form& a, const AuditCase& with_a, const Form& b) {
    const uint32_t changes = a.mistake->changes | b.mistake->changes;
    if ((a.mistake->changes & b.mistake->changes) != 0) return;
    const auto both = b.In(with_a);
    if (!both.has_value()) return;
    const auto found = Try(*both, changes);
    if (found.has_value()) Add({a.applied(), b.applied()}, *both, *found);
  }

  void TryOrderWith(const Form& made, const AuditCase& computation) {
    const Mistake* shuffled = FindMistake(kShuffled);
    if ((made.mistake->changes & (shuffled->changes | kChangesNumbers)) != 0) return;
    const auto both = Shuffled(computation);
    if (!both.has_value()) return;
    const auto found = evaluator_.Try(*both);
    if (found.has_value()) Add({made.applied(), {shuffled}}, *both, *found);
  }

  void Add(const std::vector<AppliedMistake>& applied, const AuditCase& computation,
           const Deviation& deviation) {
    AuditExplanation explanation;
    std::vector<absl::string_view> texts, fixes;
    bool shuffled = false, sums = false;
    for (const auto& [mistake, form] : applied) {
      explanation.mistakes.emplace_back(mistake->id);
      texts.push_back(mistake->text);
      fixes.push_back(mistake->fix);
      shuffled = shuffled || mistake->id == kShuffled;
      sums = sums || mistake->id == kBf16Sums;
    }
    std::sort(explanation.mistakes.begin(), explanation.mistakes.end());
    for (AuditExplanation& other : result_.explanations) {
      if (other.mistakes != explanation.mistakes) continue;
      if (deviation.ratio < other.deviation.ratio) other.deviation = deviation;
      return;  // another form of the same
    }
    explanation.text = absl::StrJoin(texts, "; and ");
    explanation.fix = absl::StrJoin(fixes, "; and ");
    if (shuffled) {
      absl::StrAppend(&explanation.text, ": ", absl::StrJoin(computation.plan.order, ", "));
    }
    explanation.deviation = deviation;
    explanation.first_stage = sums ? *result_.first_difference : evaluator_.FirstStage(computation);
    explanation.computation = computation;
    explanation.applied = applied;
    result_.explanations.push_back(std::move(explanation));
  }

  const SearchOptions& options_;
  Evaluator evaluator_;
  std::vector<Form> forms_;
  SearchResult result_;
};

}  // namespace

const char* AuditVerdictName(AuditVerdict verdict) {
  switch (verdict) {
    case AuditVerdict::kRight:
      return "right";
    case AuditVerdict::kExplained:
      return "explained";
    case AuditVerdict::kUnexplained:
      return "unexplained";
  }
  return "?";
}

SearchResult FindMistakes(const AuditCase& right, const TheirTensors& theirs,
                          const SearchOptions& options) {
  return Search(right, theirs, options).Run();
}

}  // namespace headwise
