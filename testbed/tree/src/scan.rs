//! A scanner of Rust source, just deep enough to tell code from comments and literals.
//!
//! It knows nested block comments, strings with escapes, raw strings, byte and C strings, and the
//! difference between a character literal and a lifetime: what is needed to count braces and to look
//! for words without being fooled by text.

/// Rust source with its comments and literals told apart from its code.
#[derive(Debug)]
pub struct Scan {
    /// The code alone: comments, and the insides of string and character literals, are blanks. Lines
    /// stand where they stood.
    pub code: String,
    /// Every line of every comment: its line number, from 1, and its text.
    pub comments: Vec<(usize, String)>,
}

/// A function: its name, the line of its `fn`, and the lines that it spans, signature included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// The name after `fn`.
    pub name: String,
    /// The line of the word `fn`, from 1.
    pub line: usize,
    /// The number of lines from there to the closing brace.
    pub lines: usize,
}

#[derive(Clone, Copy)]
enum State {
    Code,
    LineComment,
    BlockComment { depth: usize },
    Text { quote: char },
    RawText { hashes: usize },
}

/// Whether `c` may stand inside an identifier.
pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

impl Scan {
    /// Scans one file.
    pub fn of(source: &str) -> Self {
        let chars: Vec<char> = source.chars().collect();
        let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
        let mut code = String::with_capacity(source.len());
        let mut comments: Vec<(usize, String)> = Vec::new();
        let mut state = State::Code;
        let (mut i, mut line) = (0, 1);
        while i < chars.len() {
            let c = chars[i];
            let mut width = 1; // characters consumed in this step; none of the wider steps holds a newline
            let mut keep = false;
            match state {
                State::Code if c == '/' && at(i + 1) == '/' => {
                    state = State::LineComment;
                    comments.push((line, String::new()));
                    width = 2;
                }
                State::Code if c == '/' && at(i + 1) == '*' => {
                    state = State::BlockComment { depth: 1 };
                    comments.push((line, String::new()));
                    width = 2;
                }
                State::Code => {
                    keep = true;
                    if c == '"' {
                        state = match raw_hashes_before(&chars, i) {
                            Some(hashes) => State::RawText { hashes },
                            None => State::Text { quote: '"' },
                        };
                    } else if c == '\'' && (at(i + 1) == '\\' || (at(i + 2) == '\'' && at(i + 1) != '\'')) {
                        state = State::Text { quote: '\'' };
                    }
                }
                State::LineComment if c == '\n' => state = State::Code,
                State::LineComment => push_comment(&mut comments, c),
                State::BlockComment { depth } => match (c, at(i + 1)) {
                    ('*', '/') => {
                        width = 2;
                        state =
                            if depth == 1 { State::Code } else { State::BlockComment { depth: depth - 1 } };
                    }
                    ('/', '*') => {
                        width = 2;
                        state = State::BlockComment { depth: depth + 1 };
                    }
                    ('\n', _) => comments.push((line + 1, String::new())),
                    _ => push_comment(&mut comments, c),
                },
                State::Text { .. } if c == '\\' && at(i + 1) != '\n' => width = 2,
                State::Text { quote } if c == quote => {
                    state = State::Code;
                    keep = true;
                }
                State::Text { .. } => {}
                State::RawText { hashes } => {
                    if c == '"' && (0..hashes).all(|h| at(i + 1 + h) == '#') {
                        state = State::Code;
                        keep = true;
                    }
                }
            }
            if c == '\n' {
                line += 1;
                code.push('\n');
            } else {
                code.push(if keep { c } else { ' ' });
                (1..width).for_each(|_| code.push(' '));
            }
            i += width;
        }
        Self { code, comments }
    }

    /// The lines (from 1) on which `word` stands in the code as a word of its own.
    pub fn lines_with_word(&self, word: &str) -> Vec<usize> {
        self.code
            .lines()
            .enumerate()
            .filter(|(_, text)| find_word(text, word, 0).is_some())
            .map(|(i, _)| i + 1)
            .collect()
    }

    /// Every function that has a body.
    pub fn functions(&self) -> Vec<Function> {
        let code = self.code.as_str();
        let mut functions = Vec::new();
        let mut from = 0;
        while let Some(start) = find_word(code, "fn", from) {
            from = start + 2;
            let after = code[from..].trim_start();
            let name: String =
                after.strip_prefix("r#").unwrap_or(after).chars().take_while(|&c| is_word(c)).collect();
            if name.is_empty() {
                continue; // the type of a function pointer
            }
            if let Some((end, '}')) = end_of_item(code, from) {
                let line = line_of(code, start);
                functions.push(Function { name, line, lines: line_of(code, end) - line + 1 });
            }
        }
        functions
    }

    /// The code with the items under `#[cfg(test)]` blanked.
    pub fn code_without_tests(&self) -> String {
        let mut code = self.code.clone();
        let mut from = 0;
        while let Some(start) = ["#[cfg(test)]", "#[cfg(all(test"]
            .iter()
            .filter_map(|a| code[from..].find(a))
            .min()
            .map(|i| from + i)
        {
            let end = end_of_item(&code, start).map_or(code.len(), |(end, _)| end + 1);
            let blank: String =
                code[start..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
            from = start + blank.len();
            code.replace_range(start..end, &blank);
        }
        code
    }
}

fn push_comment(comments: &mut [(usize, String)], c: char) {
    if let Some((_, text)) = comments.last_mut() {
        text.push(c);
    }
}

/// When the quote at `i` opens a raw string (`r"`, `r#"`, `br#"`, `cr#"`), the number of its hashes.
fn raw_hashes_before(chars: &[char], i: usize) -> Option<usize> {
    let hashes = chars[..i].iter().rev().take_while(|&&c| c == '#').count();
    let before = &chars[..i - hashes];
    let (last, rest) = before.split_last()?;
    if *last != 'r' {
        return None;
    }
    let rest = match rest.split_last() {
        Some((&('b' | 'c'), rest)) => rest,
        _ => rest,
    };
    let prefix_is_whole = rest.last().is_none_or(|&c| !is_word(c));
    prefix_is_whole.then_some(hashes)
}

/// The offset at or after `from` where `word` stands as a word of its own.
pub fn find_word(text: &str, word: &str, from: usize) -> Option<usize> {
    text[from..].match_indices(word).map(|(i, _)| from + i).find(|&start| {
        let before = text[..start].chars().next_back();
        let after = text[start + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

/// Where the item that starts at `from` ends, and in what: its closing brace or its semicolon.
fn end_of_item(code: &str, from: usize) -> Option<(usize, char)> {
    // Brackets count so that the semicolon of an array type does not end a signature.
    let (mut brackets, mut braces) = (0_usize, 0_usize);
    for (i, c) in code[from..].char_indices() {
        match c {
            '(' | '[' => brackets += 1,
            ')' | ']' => brackets = brackets.saturating_sub(1),
            '{' if brackets == 0 || braces > 0 => braces += 1,
            '}' if braces > 0 => {
                braces -= 1;
                if braces == 0 {
                    return Some((from + i, c));
                }
            }
            ';' if brackets == 0 && braces == 0 => return Some((from + i, c)),
            _ => {}
        }
    }
    None
}

fn line_of(text: &str, offset: usize) -> usize {
    text[..offset].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> String {
        Scan::of(source).code
    }

    #[test]
    fn comments_are_blanks_and_are_kept_apart() {
        let scan = Scan::of("a // b {\nc /* d /* e */\n} */ f");
        assert_eq!(scan.code, "a       \nc             \n     f");
        let texts: Vec<_> = scan.comments.iter().map(|(l, t)| (*l, t.trim())).collect();
        assert_eq!(texts, [(1, "b {"), (2, "d  e"), (3, "}")]);
    }

    #[test]
    fn strings_are_blanks_between_their_quotes() {
        assert_eq!(code(r#"x("{\"}", y)"#), r#"x("    ", y)"#);
        assert_eq!(code("\"a\\\\\" b"), "\"   \" b");
        assert_eq!(code("b\"}\" c\"}\""), "b\" \" c\" \"");
        assert_eq!(code("\"a\n}\" b"), "\" \n \" b");
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(code(r###"r#"a"}"# b"###), r###"r#"   "# b"###);
        assert_eq!(code("r\"\\\" b"), "r\" \" b");
        assert_eq!(code("br##\"}\"# }\"## b"), "br##\"     \"## b");
        // An identifier that ends in r does not make the string raw.
        assert_eq!(code("for\"\\\"}\" b"), "for\"   \" b");
    }

    #[test]
    fn lifetimes_are_not_characters() {
        assert_eq!(code("f::<'a>('{', '\\'', b'}')"), "f::<'a>(' ', '  ', b' ')");
        assert_eq!(code("&'static str; '\"'; x"), "&'static str; ' '; x");
    }

    #[test]
    fn words_are_whole() {
        let scan = Scan::of("unsafe_code\nx unsafe {}\n// unsafe\nlet s = \"unsafe\";");
        assert_eq!(scan.lines_with_word("unsafe"), [2]);
    }

    #[test]
    fn function_lengths() {
        let source = "fn a(x: [u8; 4]) -> u8 {\n let s = \"}\"; // }\n if x { '}' }\n}\n\
                      trait T { fn b(&self); fn c(&self) {\n} }\n\
                      type F = fn(u8) -> u8;\nfn r#fn<T>(f: fn(T))\nwhere\n T: X,\n{ }";
        let found: Vec<_> =
            Scan::of(source).functions().into_iter().map(|f| (f.name, f.line, f.lines)).collect();
        let want = [("a", 1, 4), ("c", 5, 2), ("fn", 8, 4)].map(|(n, l, k)| (n.to_owned(), l, k));
        assert_eq!(found, want);
    }

    #[test]
    fn test_modules_can_be_left_out() {
        let source = "fn a() {}\n#[cfg(test)] use x;\n#[cfg(test)]\nmod tests {\n fn b() { x }\n}\nfn c() {}";
        let code = Scan::of(source).code_without_tests();
        let lines: Vec<_> = code.lines().map(str::trim).collect();
        assert_eq!(lines, ["fn a() {}", "", "", "", "", "", "fn c() {}"]);
    }
}
