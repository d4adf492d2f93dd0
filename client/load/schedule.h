// SPDX-License-Identifier: Apache-2.0
// The rate of an open loop over time: steps and ramps.
#ifndef HEADWISE_CLIENT_LOAD_SCHEDULE_H_
#define HEADWISE_CLIENT_LOAD_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace headwise::client {

// Straight pieces, one after the other. Immutable; thread-safe.
class RateSchedule {
 public:
  struct Piece {
    double begin_rate = 0;  // calls a second
    double end_rate = 0;
    double seconds = 0;
  };

  static constexpr double kMaxRate = 1e6;

  // "100:10s,100-500:30s,500:10s": a rate, or the two ends of a ramp, and how long. Usage error
  // for anything else, and for a piece in which no call is planned.
  static absl::StatusOr<RateSchedule> Parse(absl::string_view text);
  static RateSchedule Constant(double rate, double seconds);

  const std::vector<Piece>& pieces() const { return pieces_; }
  double seconds() const;
  double calls() const;  // planned in all; the integral of the rate
  double mean_rate() const { return calls() / seconds(); }
  double first_rate() const;  // above 0

  // When `calls` calls have been planned, in seconds; nullopt from the last one's end on.
  std::optional<double> TimeOf(double calls) const;

  // The piece that `seconds` lies in; the last one from its end on.
  size_t PieceAt(double seconds) const;

 private:
  explicit RateSchedule(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {}
  std::vector<Piece> pieces_;
};

// "100", or "100-500" for a ramp, as in a schedule.
std::string RateText(const RateSchedule::Piece& piece);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LOAD_SCHEDULE_H_
