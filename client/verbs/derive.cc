// SPDX-License-Identifier: Apache-2.0
// prune, permute, split, combine, quantize.
#include <string>

#include "absl/strings/str_cat.h"
#include "client/json.h"
#include "client/status.h"
#include "client/verb.h"

namespace headwise::client {
namespace {

absl::Status Derive(Session& session, v1::DeriveLayerRequest request) {
  if (!session.args.Has("as")) return UsageError("--as is missing");
  request.set_name(session.name());
  request.set_as(session.args.Text("as"));
  request.set_replace(session.args.Has("replace"));
  CLIENT_ASSIGN_OR_RETURN(const v1::LoadLayerResponse response,
                          session.client.DeriveLayer(request));
  if (session.json) {
    CLIENT_ASSIGN_OR_RETURN(session.out, ToJson(response));
  } else {
    session.out = absl::StrCat("made ", CleanText(response.layer().name()), " version ",
                               response.layer().version(), ": ", response.layer().heads(),
                               " heads, ", v1::DType_Name(response.layer().dtype()), "\n");
  }
  return absl::OkStatus();
}

absl::Status DeriveWithHeads(Session& session, v1::DeriveLayerRequest::Kind kind,
                             absl::string_view flag) {
  if (!session.args.Has(flag)) return UsageError(absl::StrCat("--", flag, " is missing"));
  v1::DeriveLayerRequest request;
  request.set_kind(kind);
  CLIENT_ASSIGN_OR_RETURN(const auto heads, session.args.UintList(flag));
  request.mutable_heads()->Add(heads.begin(), heads.end());
  return Derive(session, std::move(request));
}

absl::Status DerivePlain(Session& session, v1::DeriveLayerRequest::Kind kind) {
  v1::DeriveLayerRequest request;
  request.set_kind(kind);
  if (kind == v1::DeriveLayerRequest::QUANTIZE) request.set_dtype(v1::INT8);
  return Derive(session, std::move(request));
}

absl::Status Prune(Session& session) {
  if (session.args.Has("gates")) {
    return absl::UnimplementedError("gates: fitted gates are not in this version; was --gates");
  }
  return DeriveWithHeads(session, v1::DeriveLayerRequest::PRUNE, "heads");
}

absl::Status Permute(Session& session) {
  return DeriveWithHeads(session, v1::DeriveLayerRequest::PERMUTE, "order");
}

absl::Status Split(Session& session) { return DerivePlain(session, v1::DeriveLayerRequest::SPLIT); }

absl::Status Combine(Session& session) {
  return DerivePlain(session, v1::DeriveLayerRequest::COMBINE);
}

absl::Status Quantize(Session& session) {
  return DerivePlain(session, v1::DeriveLayerRequest::QUANTIZE);
}

}  // namespace

std::vector<Verb> DeriveVerbs() {
  const Flag as = {"as", "NEW", "name of the new layer"};
  const Flag replace = {"replace", "", "replace a layer of that name"};
  const auto verb = [](absl::string_view name, absl::string_view summary, std::vector<Flag> flags,
                       absl::Status (*run)(Session&)) {
    return Verb{.name = name,
                .arguments = "NAME",
                .summary = summary,
                .min_positional = 1,
                .max_positional = 1,
                .flags = std::move(flags),
                .run = run};
  };
  return {verb("prune", "makes a layer without some heads",
               {{"heads", "0,3", "ids of the heads that go"},
                {"gates", "", "with gates fitted to the heads that stay"},
                as,
                replace},
               Prune),
          verb("permute", "makes a layer with its heads in another order",
               {{"order", "2,0,1", "ids in their new order"}, as, replace}, Permute),
          verb("split", "makes a layer with q, k and v of their own", {as, replace}, Split),
          verb("combine", "makes a layer with fused q, k and v", {as, replace}, Combine),
          verb("quantize", "makes an int8 layer", {as, replace}, Quantize)};
}

}  // namespace headwise::client
