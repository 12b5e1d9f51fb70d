//! The first host of a Slurm host list such as `gpu[03-05,9],big1`.
//!
//! Only the first is needed (task 0 runs there), so ranges are never expanded.

/// Returns the first host: `rack[1-2]node[03-05],other` gives `rack1node03`. Leading zeros are
/// kept.
pub(super) fn first(list: &str) -> Result<String, String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        let Some(stop) = rest.find(['[', ']', ',']) else {
            host.push_str(rest);
            break;
        };
        host.push_str(&rest[..stop]);
        match &rest[stop..stop + 1] {
            "," => break,
            "]" => return Err("there is a ] without a [".to_owned()),
            _ => {
                let inner = &rest[stop + 1..];
                let close = inner.find(']').ok_or("the bracket is not closed")?;
                let number = inner[..close].split([',', '-']).next().unwrap_or_default();
                if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(format!("[{}] does not start with a number", &inner[..close]));
                }
                host.push_str(number);
                rest = &inner[close + 1..];
            }
        }
    }
    if host.is_empty() { Err("its first host is empty".to_owned()) } else { Ok(host) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_first_host_of_every_form() {
        for (list, host) in [
            ("gpu[03-05,9],big1", "gpu03"),
            ("big1,gpu[03-05]", "big1"),
            ("solo", "solo"),
            ("n[7]", "n7"),
            ("n[009,12].lab.edu,x", "n009.lab.edu"),
            ("rack[1-2]node[03-05]", "rack1node03"),
        ] {
            assert_eq!(first(list).as_deref(), Ok(host), "{list}");
        }
        for bad in ["", ",a", "a[", "a[]", "a[x-y]", "a]b", "a[-3]"] {
            assert!(first(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_a_host_or_an_error(list in "[a-z0-9\\[\\],é-]{0,20}") {
            let _ = first(&list);
        }
    }
}
