// SPDX-License-Identifier: Apache-2.0
#include "core/batch/queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "core/base/refusal.h"

namespace headwise {
namespace {

// Where several are about, one may hold at most that many times what is left free.
constexpr int64_t kShareOfFree = 8;

// How a layer's share weighs against a client's where they pull in different directions: many
// clients that flood one layer leave a neighbour on another layer most of the layer's fair half.
constexpr double kLayerWeight = 4.0;

// How far behind a request that doesn't fit a smaller one is looked for.
constexpr size_t kLookBehind = 16;

absl::Status Full(Refusal refusal, absl::string_view field, absl::string_view unit, int64_t limit,
                  absl::string_view flag, int64_t waiting, int64_t more) {
  return Refuse(refusal, absl::StrCat(field, ": at most ", limit, " ", unit, " may wait (", flag,
                                      "), retry later; was ", waiting, " and ", more, " more"));
}

}  // namespace

absl::Status WorkItem::Alive(absl::Time now) const {
  if (context.cancel != nullptr && context.cancel->cancelled()) {
    return absl::CancelledError("request: called off by the caller; was queued or running");
  }
  if (now >= context.deadline) {
    return absl::DeadlineExceededError(
        absl::StrCat("deadline: must lie ahead; was ",
                     absl::ToInt64Microseconds(now - context.deadline), " us ago"));
  }
  return absl::OkStatus();
}

// One client's, or one layer's, part of the queue.
absl::Status WorkQueue::CheckPart(const FairShare& shares, const std::string& name,
                                  const WorkItem& item, int64_t limit, bool is_client) const {
  const FairShare::Account* account = shares.Find(name);
  const int64_t waiting = account == nullptr ? 0 : account->tokens;
  const int64_t cost = item.cost_tokens();
  const Refusal refusal = is_client ? Refusal::kClientFull : Refusal::kLayerFull;
  const char* const field = is_client ? "client" : "layer";
  if (limit > 0 && cost > limit - waiting) {
    return Full(refusal, field, "tokens", limit,
                is_client ? "--client-queue-tokens" : "--layer-queue-tokens", waiting, cost);
  }
  const bool alone = waiting == tokens_ && !shares.contended();
  const int64_t part = kShareOfFree * (limits_.tokens - tokens_);
  if (!alone && waiting > 0 && waiting + cost > part) {
    return Full(refusal, field, "tokens of one beside others", part, "--queue-tokens", waiting,
                cost);
  }
  return absl::OkStatus();
}

absl::Status WorkQueue::CheckBounds(const WorkItem& item) const {
  const int64_t cost = item.cost_tokens();
  if (cost > limits_.tokens) {
    return Refuse(Refusal::kTooLarge,
                  absl::StrCat("request: at most ", limits_.tokens,
                               " tokens can ever wait (--queue-tokens); was ", cost));
  }
  if (item.bytes > limits_.bytes) {
    return Refuse(Refusal::kTooLarge, absl::StrCat("request: at most ", limits_.bytes,
                                                   " bytes can ever wait (--queue-bytes); was ",
                                                   item.bytes, " with its answer"));
  }
  if (cost > limits_.tokens - tokens_) {
    return Full(Refusal::kQueueFull, "queue", "tokens", limits_.tokens, "--queue-tokens", tokens_,
                cost);
  }
  if (item.bytes > limits_.bytes - bytes_) {
    return Full(Refusal::kQueueFull, "queue", "bytes", limits_.bytes, "--queue-bytes", bytes_,
                item.bytes);
  }
  const FairShare::Account* client = clients_.Find(item.context.client);
  if (limits_.client_requests > 0 && client != nullptr &&
      client->requests >= limits_.client_requests) {
    return Full(Refusal::kClientFull, "client", "requests", limits_.client_requests,
                "--client-queue-requests", client->requests, 1);
  }
  absl::Status status =
      CheckPart(clients_, item.context.client, item, limits_.client_tokens, /*is_client=*/true);
  if (!status.ok()) return status;
  return CheckPart(layers_, item.layer->info().name, item, limits_.layer_tokens,
                   /*is_client=*/false);
}

absl::Status WorkQueue::Push(std::unique_ptr<WorkItem>* item, absl::Time now) {
  if (absl::Status fits = CheckBounds(**item); !fits.ok()) return fits;
  WorkItem& waiting = **item;
  const int64_t cost = waiting.cost_tokens();
  Flow& flow = flows_[{waiting.context.client, waiting.layer.get(), waiting.input.has_memory}];
  flow.client = clients_.Enter(waiting.context.client, cost, now);
  flow.layer = layers_.Enter(waiting.layer->info().name, cost, now);
  ++requests_;
  tokens_ += cost;
  bytes_ += waiting.bytes;
  work_ += waiting.work;
  const Kind kind = KindOf(waiting);
  if (kind == kShort) {
    ++short_requests_;
  } else {
    ++long_priorities_[waiting.priority];
  }
  waiting.order = ++order_;
  flow.lines[kind][waiting.priority].push_back(std::move(*item));
  return absl::OkStatus();
}

void WorkQueue::Uncount(const WorkItem& item, const Flow& flow) {
  clients_.Leave(flow.client, item.cost_tokens());
  layers_.Leave(flow.layer, item.cost_tokens());
  --requests_;
  tokens_ -= item.cost_tokens();
  bytes_ -= item.bytes;
  work_ = requests_ == 0 ? 0.0 : work_ - item.work;  // no rounding is left behind
  if (KindOf(item) == kShort) {
    --short_requests_;
  } else if (const auto found = long_priorities_.find(item.priority); --found->second == 0) {
    long_priorities_.erase(found);
  }
}

std::unique_ptr<WorkItem> WorkQueue::Take(const Choice& choice) {
  Flow& flow = choice.flow->second;
  Line& line = flow.lines[choice.kind];
  auto& deque = line.begin()->second;
  const auto at = deque.begin() + static_cast<std::ptrdiff_t>(choice.place);
  std::unique_ptr<WorkItem> item = std::move(*at);
  deque.erase(at);
  if (deque.empty()) line.erase(line.begin());
  Uncount(*item, flow);
  if (flow.lines[kShort].empty() && flow.lines[kLong].empty()) flows_.erase(choice.flow);
  return item;
}

double WorkQueue::Place(const Flow& flow) const {
  return clients_.Place(*flow.client) + kLayerWeight * layers_.Place(*flow.layer);
}

bool WorkQueue::ChooseFirst(const InterruptRules* interrupt, Choice* choice) {
  const WorkItem* best = nullptr;
  double best_place = 0.0;
  for (auto flow = flows_.begin(); flow != flows_.end(); ++flow) {
    for (const Kind kind : {kShort, kLong}) {
      const Line& line = flow->second.lines[kind];
      if (line.empty()) continue;
      const WorkItem& head = *line.begin()->second.front();
      if (interrupt != nullptr) {
        const bool urgent = head.priority > interrupt->above_priority;
        if (head.work > (urgent ? interrupt->max_urgent_work : interrupt->max_work)) continue;
      }
      const double place = Place(flow->second);
      const bool same_flow = best != nullptr && choice->flow == flow;
      const bool sooner = same_flow && head.priority != best->priority
                              ? head.priority > best->priority
                              : head.order < (best == nullptr ? 0 : best->order);
      if (best == nullptr || place < best_place || (place == best_place && sooner)) {
        best = &head;
        best_place = place;
        *choice = {flow, kind, 0};
      }
    }
  }
  return best != nullptr;
}

// The first request of the chosen line that the batch has room for.
bool WorkQueue::FindJoiner(const BatchRules& rules, const Batch& batch, Choice* choice) const {
  const Flow& flow = choice->flow->second;
  const Line& line = flow.lines[choice->kind];
  if (line.empty()) return false;
  const auto& deque = line.begin()->second;
  const double max_work = batch.kind == kShort ? rules.max_short_work : rules.max_long_work;
  for (size_t i = 0; i < std::min(deque.size(), kLookBehind); ++i) {
    const WorkItem& item = *deque[i];
    if (batch.tokens + item.input.query_rows > rules.max_tokens) continue;
    if (max_work > 0.0 && batch.work + item.work > max_work) continue;
    choice->place = i;
    return clients_.MayJoin(*flow.client, item.work) && layers_.MayJoin(*flow.layer, item.work);
  }
  return false;
}

bool WorkQueue::ChooseNext(const BatchRules& rules, const Batch& batch, absl::Time now,
                           Choice* choice) {
  if (rules.max_requests > 0 && static_cast<int64_t>(batch.items.size()) >= rules.max_requests) {
    return false;
  }
  if (FindNext(rules, batch, choice)) return true;
  // What has been charged since may let somebody on.
  const bool clients_moved = clients_.UpdateClaims(now);
  const bool layers_moved = layers_.UpdateClaims(now);
  return (clients_moved || layers_moved) && FindNext(rules, batch, choice);
}

bool WorkQueue::FindNext(const BatchRules& rules, const Batch& batch, Choice* choice) {
  const WorkItem& first = *batch.items.front();
  bool found = false;
  double best_place = 0.0;
  int64_t best_order = 0;
  for (auto flow = flows_.begin(); flow != flows_.end(); ++flow) {
    if (std::get<1>(flow->first) != first.layer.get() ||
        std::get<2>(flow->first) != first.input.has_memory) {
      continue;
    }
    Choice joiner{flow, batch.kind, 0};
    if (!FindJoiner(rules, batch, &joiner)) continue;
    const double place = Place(flow->second);
    const int64_t order = flow->second.lines[batch.kind].begin()->second[joiner.place]->order;
    if (!found || place < best_place || (place == best_place && order < best_order)) {
      found = true;
      best_place = place;
      best_order = order;
      *choice = joiner;
    }
  }
  return found;
}

WorkQueue::Items WorkQueue::Fill(const BatchRules& rules, const InterruptRules* interrupt,
                                 absl::Time now, Check check, Dropped* dropped) {
  Batch batch;
  clients_.StartBatch(now);
  layers_.StartBatch(now);
  Choice choice;
  while (batch.items.empty() ? ChooseFirst(interrupt, &choice)
                             : ChooseNext(rules, batch, now, &choice)) {
    FairShare::Account* const client = choice.flow->second.client;
    FairShare::Account* const layer = choice.flow->second.layer;
    std::unique_ptr<WorkItem> item = Take(choice);
    if (absl::Status worth = check(*item); !worth.ok()) {
      dropped->emplace_back(std::move(item), std::move(worth));
      continue;
    }
    clients_.Charge(client, item->work, now);
    layers_.Charge(layer, item->work, now);
    batch.kind = KindOf(*item);
    batch.tokens += item->input.query_rows;
    batch.work += item->work;
    batch.items.push_back(std::move(item));
  }
  return std::move(batch.items);
}

WorkQueue::Items WorkQueue::TakeBatch(const BatchRules& rules, absl::Time now, Check check,
                                      Dropped* dropped) {
  return Fill(rules, nullptr, now, check, dropped);
}

WorkQueue::Items WorkQueue::TakeInterrupt(const InterruptRules& rules, absl::Time now, Check check,
                                          Dropped* dropped) {
  const BatchRules short_batch{.max_requests = rules.max_requests,
                               .max_tokens = rules.max_tokens,
                               .max_long_work = rules.max_urgent_work,
                               .max_short_work = rules.max_work};
  return Fill(short_batch, &rules, now, check, dropped);
}

void WorkQueue::TakeDead(absl::Time now, Dropped* dropped) {
  for (auto flow = flows_.begin(); flow != flows_.end();) {
    for (Line& line : flow->second.lines) {
      for (auto& [priority, deque] : line) {
        std::erase_if(deque, [&](std::unique_ptr<WorkItem>& item) {
          absl::Status alive = item->Alive(now);
          if (alive.ok()) return false;
          Uncount(*item, flow->second);
          dropped->emplace_back(std::move(item), std::move(alive));
          return true;
        });
      }
      std::erase_if(line, [](const auto& entry) { return entry.second.empty(); });
    }
    const bool empty = flow->second.lines[kShort].empty() && flow->second.lines[kLong].empty();
    flow = empty ? flows_.erase(flow) : std::next(flow);
  }
}

WorkQueue::Items WorkQueue::TakeAll() {
  Items all;
  for (auto& [key, flow] : flows_) {
    for (Line& line : flow.lines) {
      for (auto& [priority, deque] : line) {
        for (std::unique_ptr<WorkItem>& item : deque) {
          Uncount(*item, flow);
          all.push_back(std::move(item));
        }
      }
    }
  }
  flows_.clear();
  return all;
}

}  // namespace headwise
