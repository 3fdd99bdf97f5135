//! Dates for chat templates that show the date to the model.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// `strftime` in UTC in the C locale, for the directives that templates use; `None` for others.
pub(crate) fn format_time(format: &str, unix_seconds: u64) -> Option<String> {
    let (days, second) = (unix_seconds / 86_400, unix_seconds % 86_400);
    let (year, month, day) = date(days);
    let weekday = WEEKDAYS[(days as usize + 4) % 7];
    let month_name = MONTHS[month - 1];
    let hour = second / 3600;
    let hour_of_twelve = (hour + 11) % 12 + 1;
    let minute = second / 60 % 60;
    let mut out = String::new();
    let mut characters = format.chars();
    while let Some(c) = characters.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = characters.next()?;
        // %-d is %d without the leading zero.
        let plain = directive == '-';
        if plain {
            directive = characters.next()?;
        }
        let text = match directive {
            'Y' => year.to_string(),
            'y' => format!("{:02}", year % 100),
            'm' => format!("{month:02}"),
            'd' => format!("{day:02}"),
            'e' => format!("{day:2}"),
            'j' => format!("{:03}", days - days_before(year) + 1),
            'H' => format!("{hour:02}"),
            'I' => format!("{hour_of_twelve:02}"),
            'M' => format!("{minute:02}"),
            'S' => format!("{:02}", second % 60),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'B' => month_name.to_owned(),
            'b' | 'h' => month_name[..3].to_owned(),
            'A' => weekday.to_owned(),
            'a' => weekday[..3].to_owned(),
            'F' => format!("{year}-{month:02}-{day:02}"),
            'T' => format!("{hour:02}:{minute:02}:{:02}", second % 60),
            'Z' => "UTC".to_owned(),
            'z' => "+0000".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        };
        let trimmed = text.trim_start_matches('0');
        out.push_str(match plain {
            true if trimmed.is_empty() => "0",
            true => trimmed,
            false => &text,
        });
    }
    Some(out)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

/// Days from 1970-01-01 to January 1st of `year`.
fn days_before(year: u64) -> u64 {
    let leaps = |year: u64| (year - 1) / 4 - (year - 1) / 100 + (year - 1) / 400;
    365 * (year - 1970) + leaps(year) - leaps(1970)
}

/// Year, month from 1, day from 1.
fn date(days: u64) -> (u64, usize, u64) {
    // The first guess is at most one year too late.
    let mut year = 1970 + days / 366;
    while days_before(year + 1) <= days {
        year += 1;
    }
    let mut day = days - days_before(year);
    let february = 28 + u64::from(is_leap(year));
    for (month, length) in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
        .into_iter()
        .enumerate()
    {
        if day < length {
            return (year, month + 1, day + 1);
        }
        day -= length;
    }
    unreachable!("a year has twelve months")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_equal_strftime() {
        // Each expected text is the output of Python's strftime for the same second.
        let all = "%Y-%m-%d %H:%M:%S %A %B %j %y %b %a %I %p %-d %e %%";
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thursday January 001 70 Jan Thu 12 AM 1  1 %"),
            (
                951_782_399,
                "2000-02-28 23:59:59 Monday February 059 00 Feb Mon 11 PM 28 28 %",
            ),
            (
                951_868_800,
                "2000-03-01 00:00:00 Wednesday March 061 00 Mar Wed 12 AM 1  1 %",
            ),
            (
                1_735_689_599,
                "2024-12-31 23:59:59 Tuesday December 366 24 Dec Tue 11 PM 31 31 %",
            ),
            (
                4_102_444_800,
                "2100-01-01 00:00:00 Friday January 001 00 Jan Fri 12 AM 1  1 %",
            ),
        ] {
            assert_eq!(format_time(all, seconds).as_deref(), Some(expected));
        }
        assert_eq!(format_time("%Q", 0), None);
        assert_eq!(format_time("50%", 0), None);
    }
}
