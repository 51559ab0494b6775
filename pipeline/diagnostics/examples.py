"""Ten pairs on which encoders are looked at when the user gives none."""

import pandas as pd

PAIRS = [
    ("opposite stances, similar words", "수업 시간에 휴대전화를 걷는 데 찬성합니다.",
     "수업 시간에 휴대전화를 걷는 데 반대합니다."),
    ("opposite verdicts, similar words", "배우들 연기가 좋아서 끝까지 재미있게 봤다.",
     "배우들 연기만 좋았지 끝까지 보기 힘들었다."),
    ("negation", "내일 회의에는 제가 들어갑니다.", "내일 회의에는 제가 안 들어갑니다."),
    ("same topic, different words", "출퇴근길 지하철이 너무 붐벼서 숨쉬기도 어렵습니다.",
     "러시아워 전철 혼잡도를 낮출 대책을 세워 주세요."),
    ("paraphrase, different words", "주문한 물건이 아직 도착하지 않았어요.",
     "며칠 전에 산 상품을 여태 못 받았습니다."),
    ("another number", "참가비는 한 사람에 3만 원입니다.", "참가비는 한 사람에 30만 원입니다."),
    ("who did what to whom", "민수가 지영이에게 책을 빌려주었다.",
     "지영이가 민수에게 책을 빌려주었다."),
    ("another style", "자료 다 되는 대로 바로 보내 드리겠습니다.", "자료 다 되면 바로 보낼게~"),
    ("typos and spacing", "오늘 점심 같이 드실래요?", "오늘점심 가치 드실레요??"),
    ("unrelated", "강아지 산책은 하루에 두 번 시킵니다.",
     "환율이 올라 수입 물가가 뛰고 있습니다."),
]


def example_pairs() -> pd.DataFrame:
    """The pairs with what they show: id, sentence_1, sentence_2."""
    return pd.DataFrame(PAIRS, columns=["id", "sentence_1", "sentence_2"])
