// SPDX-License-Identifier: Apache-2.0
// Methods that headwise.v1 has and this release does not carry out.
#include "absl/strings/str_cat.h"
#include "server/service.h"

namespace headwise {
namespace {

absl::Status NotCarriedOut(const char* method) {
  return absl::UnimplementedError(
      absl::StrCat("method: is not carried out by this release of headwise-server; was ", method));
}

// A streaming call that is refused before its first message.
template <typename Reactor>
class Refused final : public Reactor, public Call {
 public:
  Refused(const Services& services, grpc::CallbackServerContext* context, const char* method)
      : Call(services, context, method, "") {
    absl::Status status = Admit();
    status.Update(ChooseRequestId(""));
    status.Update(NotCarriedOut(method));
    this->Finish(End(status));
  }
  void OnDone() override { delete this; }
};

}  // namespace

grpc::ServerWriteReactor<v1::AuditResponse>* HeadwiseService::Audit(
    grpc::CallbackServerContext* context, const v1::AuditRequest*) {
  return new Refused<grpc::ServerWriteReactor<v1::AuditResponse>>(services_, context, "Audit");
}

}  // namespace headwise
