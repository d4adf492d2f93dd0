// SPDX-License-Identifier: Apache-2.0
#include "client/load/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/status.h"

namespace headwise::client {
namespace {

absl::Status Malformed(absl::string_view text) {
  return UsageError(
      absl::StrCat("--schedule: must be RATE:TIME or RATE-RATE:TIME with commas, like "
                   "100:10s,100-500:30s, rates up to 1e6 and not all 0; was \"",
                   text, "\""));
}

bool ReadRate(absl::string_view text, double* rate) {
  return absl::SimpleAtod(text, rate) && *rate >= 0 && *rate <= RateSchedule::kMaxRate;
}

double CallsOf(const RateSchedule::Piece& piece) {
  return (piece.begin_rate + piece.end_rate) / 2 * piece.seconds;
}

// Seconds into the piece when `calls` of its calls have been planned: the root of
// a t + (b - a) t^2 / 2T = calls, in the form that holds for a level piece and for a = 0.
double TimeInto(const RateSchedule::Piece& piece, double calls) {
  if (piece.begin_rate == piece.end_rate) return calls / piece.begin_rate;
  const double slope = (piece.end_rate - piece.begin_rate) / piece.seconds;
  const double root =
      std::sqrt(std::max(0.0, piece.begin_rate * piece.begin_rate + 2 * slope * calls));
  return calls == 0 ? 0 : 2 * calls / (piece.begin_rate + root);
}

}  // namespace

absl::StatusOr<RateSchedule> RateSchedule::Parse(absl::string_view text) {
  std::vector<Piece> pieces;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> sides = absl::StrSplit(part, ':');
    if (sides.size() != 2) return Malformed(text);
    const std::vector<absl::string_view> rates = absl::StrSplit(sides[0], '-');
    Piece piece;
    absl::Duration time;
    if (rates.size() > 2 || !ReadRate(rates.front(), &piece.begin_rate) ||
        !ReadRate(rates.back(), &piece.end_rate) || !absl::ParseDuration(sides[1], &time) ||
        time <= absl::ZeroDuration() || time > absl::Hours(1000)) {
      return Malformed(text);
    }
    piece.seconds = absl::ToDoubleSeconds(time);
    if (CallsOf(piece) <= 0) return Malformed(text);
    pieces.push_back(piece);
  }
  return RateSchedule(std::move(pieces));
}

RateSchedule RateSchedule::Constant(double rate, double seconds) {
  return RateSchedule({{rate, rate, seconds}});
}

double RateSchedule::seconds() const {
  double sum = 0;
  for (const Piece& piece : pieces_) sum += piece.seconds;
  return sum;
}

double RateSchedule::calls() const {
  double sum = 0;
  for (const Piece& piece : pieces_) sum += CallsOf(piece);
  return sum;
}

double RateSchedule::first_rate() const {
  const Piece& first = pieces_.front();
  return first.begin_rate > 0 ? first.begin_rate : first.end_rate;
}

std::optional<double> RateSchedule::TimeOf(double calls) const {
  double begin = 0;
  for (const Piece& piece : pieces_) {
    const double here = CallsOf(piece);
    if (calls < here) return begin + TimeInto(piece, calls);
    calls -= here;
    begin += piece.seconds;
  }
  return std::nullopt;
}

size_t RateSchedule::PieceAt(double seconds) const {
  size_t i = 0;
  for (; i + 1 < pieces_.size() && seconds >= pieces_[i].seconds; ++i)
    seconds -= pieces_[i].seconds;
  return i;
}

std::string RateText(const RateSchedule::Piece& piece) {
  if (piece.begin_rate == piece.end_rate) return absl::StrCat(piece.begin_rate);
  return absl::StrCat(piece.begin_rate, "-", piece.end_rate);
}

}  // namespace headwise::client
